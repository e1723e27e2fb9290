"""Processes end with their parent, and listen on the socket that they inherit."""

import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.processes import listen, start, stop
from fedhca2.federation.flower.deploy.superlink import host_and_port

PARENT = """
import sys, threading, time
from pathlib import Path
from fedhca2.federation.flower.deploy.processes import start
threading.Thread(target=time.sleep, args=[60], daemon=True).start()
print(start(["sleep", "60"], Path(sys.argv[1])).pid, flush=True)
time.sleep(60)
"""
ANSWER = "import socket; socket.socket(fileno=0).accept()[0].sendall(b'here')"


def is_running(pid):
    status = Path(f"/proc/{pid}/stat")
    return status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process of its parent's end")
def test_a_process_ends_with_a_parent_that_is_killed(tmp_path):
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    child = int(parent.stdout.readline())
    parent.kill()
    parent.communicate()
    end = time.monotonic() + 10
    while is_running(child) and time.monotonic() < end:
        time.sleep(0.02)
    assert not is_running(child)


def test_a_process_listens_on_an_inherited_socket(tmp_path):
    listening, address = listen("127.0.0.1:0", "--listen")
    with listening:
        process = start(["python", "-c", ANSWER], tmp_path, listening=listening)
    with socket.create_connection(host_and_port(address, "--listen"), timeout=10) as connection:
        assert connection.recv(4) == b"here"
    stop([process])


def test_a_process_imports_nothing_from_the_working_directory(tmp_path, monkeypatch):
    (tmp_path / "colorsys.py").write_text("print('foreign')")
    monkeypatch.chdir(tmp_path)
    process = start(["python", "-m", "colorsys"], tmp_path / "home", tmp_path / "log")
    assert process.wait(timeout=30) == 0
    assert (tmp_path / "log").read_text() == ""


@pytest.mark.parametrize(
    "address", ["localhost", ":1", "localhost:", "localhost:http", "localhost:65536", "localhost:²"]
)
def test_an_address_has_a_host_and_a_port(address):
    with pytest.raises(UserError, match="--listen: expected HOST:PORT"):
        listen(address, "--listen")
