"""Ctrl-C at awkward moments: during an import, and a second time; and a site that gets SIGTERM."""

import os
import pty
import signal
import subprocess
import sys

IMPORTING = (
    "import signal; from fedhca2.__main__ import interrupt; signal.signal(signal.SIGINT, interrupt); import slow"
)
SWALLOWING = "import os, signal\ntry:\n    os.kill(os.getpid(), signal.SIGINT)\nexcept BaseException:\n    pass\n"
TWICE = "from fedhca2.federation.stopping import Stopping; stop = Stopping(); stop(2, None); stop(2, None)"
# Signals come while standard error is being written, as `print` would find it.
WRITING = """
import io, os, signal, sys
from fedhca2.federation.stopping import stop_between_rounds

class Slow(io.RawIOBase):
    def writable(self): return True
    def write(self, text):
        os.kill(os.getpid(), signal.SIGINT)
        return len(text)

with stop_between_rounds() as stopping:
    sys.stderr = io.TextIOWrapper(io.BufferedWriter(Slow()), write_through=True)
    sys.stderr.write("a line")
    sys.stderr.flush()
assert stopping.signal
"""


STUBBORN = """
import signal, time
from functools import partial
from fedhca2.cli.flower import exit_in_time

signal.signal(signal.SIGTERM, partial(exit_in_time, grace_s=0.2))
print("ready", flush=True)
while True:
    try:
        time.sleep(60)
    except SystemExit:
        pass  # as some libraries do on import
"""


def run(code, **options):
    return subprocess.run([sys.executable, "-c", code], text=True, check=False, **options)


def test_ctrl_c_during_an_import_is_one_line(tmp_path):
    (tmp_path / "slow.py").write_text(SWALLOWING)
    done = run(IMPORTING, cwd=tmp_path, capture_output=True)
    assert (done.returncode, done.stderr) == (130, "interrupted\n")


def test_a_second_ctrl_c_shows_the_cursor_again():
    reader, terminal = pty.openpty()
    done = run(TWICE, stdout=terminal, stderr=subprocess.DEVNULL)
    os.close(terminal)
    assert (done.returncode, os.read(reader, 100)) == (-signal.SIGINT, b"\x1b[?25h")


def test_a_signal_while_a_line_is_written_stops_the_run_all_the_same():
    done = run(WRITING, capture_output=True)
    assert (done.returncode, "stopping after this round" in done.stderr) == (0, True)


def test_an_exit_that_a_library_catches_is_carried_out_all_the_same():
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 128 + signal.SIGTERM
