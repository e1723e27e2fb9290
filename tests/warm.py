"""Commands that start at once: forks of a process that has imported torch, Flower and fedhca2 already.

Each is a process like any other: a child of the test's, with its own session, environment, folder and files. Only the
seconds of imports are saved, also for the processes of a federation that such a command starts. `python warm.py SOCKET`
is the process that forks.
"""

import ctypes
import gc
import json
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from functools import cache
from importlib import import_module
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT, Popen, TimeoutExpired

import fedhca2

FLOWER = "fedhca2.federation.flower"
IMPORTED = (
    *("fedhca2.cli", "fedhca2.runs", f"{FLOWER}.local", f"{FLOWER}.deploy.worker"),
    *(f"{FLOWER}.deploy.processes", f"{FLOWER}.deploy.proxy"),
    *("flwr.supernode.cli", "flwr.supercore.cli"),
)
BIN = Path(sys.executable).parent
PATIENCE = 300.0  # seconds
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LAUNCHED = ("python", "-IS", "-c", "LAUNCHER", "PARENT")  # before a command that should end with its parent
LOCK = threading.Lock()  # a federation starts its processes again in a thread
CONNECTION = None  # in a warm process: to the process that forks for it
prctl = ctypes.CDLL(None).prctl


class Warm:
    """What tests use of `subprocess.Popen`, for `python` with -c CODE, -m MODULE or SCRIPT, and for a script.

    Its standard input is a pipe or the given socket. It always ends with its parent.
    """

    ends_with_parent = True

    def __init__(self, command, env=None, cwd=None, stdin=None, stdout=None, stderr=None, **_):
        command = command[len(LAUNCHED) :] if is_launched(command) else command
        stdout = stdout or sys.__stdout__
        stderr = stdout if stderr == STDOUT else stderr or sys.__stderr__
        order = {"command": [*map(str, command)], "env": dict(env or os.environ), "cwd": str(cwd or Path.cwd())}
        order["ends_with_parent"] = self.ends_with_parent
        source, sink = os.pipe()
        own_stdin = source if stdin in (None, DEVNULL, PIPE) else stdin
        with LOCK:
            socket.send_fds(_forking(), [json.dumps(order).encode()], [own_stdin, stdout.fileno(), stderr.fileno()])
            self.pid, self.returncode = int(_forking().recv(100)), None
        os.close(source)
        self.stdin = os.fdopen(sink, "w")

    def poll(self):
        with LOCK:
            if self.returncode is None:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout=float("inf")):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise TimeoutExpired("a warm process", timeout)
            time.sleep(0.02)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self):
        self.send_signal(signal.SIGTERM)

    def kill(self):
        self.send_signal(signal.SIGKILL)


class WarmPart(Warm):
    """A process that a warm command starts, if it is a Python command. It need not end with its parent."""

    def __new__(cls, command, **options):
        found = shutil.which(command[len(LAUNCHED) if is_launched(command) else 0])
        if not found or Path(found).parent != BIN or PIPE in map(options.get, ("stdin", "stdout", "stderr")):
            return Popen(command, **options)
        return super().__new__(cls)

    def __init__(self, command, stdout=None, stderr=None, **options):
        self.ends_with_parent = is_launched(command)
        command = command[len(LAUNCHED) :] if self.ends_with_parent else command
        with Path(os.devnull).open("w") as nowhere:
            streams = {"stdout": stdout, "stderr": stderr}
            streams = {name: nowhere if stream == DEVNULL else stream for name, stream in streams.items()}
            super().__init__([shutil.which(command[0]), *command[1:]], **streams, **options)


def is_launched(command):
    """Whether a command was given to `fedhca2.federation.flower.deploy.processes.start`."""
    return [*map(str, command)][1:2] == [LAUNCHED[1]]


def output_of(*command, **options):
    """What a Python command prints; it should succeed, and end."""
    with tempfile.TemporaryFile("w+") as output:
        process = Warm([sys.executable, *command], stdout=output, stderr=STDOUT, **options)
        try:
            code = process.wait(PATIENCE)
        except TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            code = f"no end within {PATIENCE} s"
        output.seek(0)
        found = output.read()
    assert code == 0, f"{code}: {found}"
    return found


@cache
def _forking():
    """A connection to the process that forks for this one, and ends with it."""
    return CONNECTION or _new_connection()


def _new_connection():
    prctl(PR_SET_CHILD_SUBREAPER, 1)  # what it forks and lets go becomes a child of this process
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(Path(fedhca2.__file__).parents[1])}
    command = [sys.executable, __file__, str(there.fileno())]
    streams = dict.fromkeys(("stdin", "stdout"), DEVNULL)
    Popen(command, env=environment, pass_fds=[there.fileno()], start_new_session=True, **streams)
    there.close()
    return here


def forked(orders):
    """Fork for every order; returns in each new process, with its command."""
    global CONNECTION
    parent = os.getppid()
    while True:
        text, files, *_ = socket.recv_fds(orders, 1 << 20, 3)
        if not text:
            os._exit(0)
        if between := os.fork():
            os.waitpid(between, 0)
            for file in files:
                os.close(file)
        elif os.fork():
            os._exit(0)
        else:
            break
    while os.getppid() != parent:
        if os.getppid() == 1:  # the process that asked for it has ended
            os._exit(0)
        time.sleep(0.001)
    order = json.loads(text)
    os.setsid()
    if order["ends_with_parent"]:
        prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    orders.send(str(os.getpid()).encode())
    orders.close()
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    CONNECTION, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if os.fork() == 0:  # it forks for the new process, and stays as clean as this one
        CONNECTION.close()
        for file in files:
            os.close(file)
        return forked(there)
    there.close()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(order["cwd"])
    os.environ.clear()
    os.environ.update(order["env"])
    return order["command"]


def become(command):
    """Do what Python does when it is started with a command."""
    rest = command[1:] if Path(command[0]).name.startswith("python") else command
    sys.orig_argv = [sys.executable, *rest]
    subprocess.Popen = WarmPart
    sys.path[:1] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.modules.pop("sitecustomize", None)
    with suppress(ImportError):
        import_module("sitecustomize")
    if rest[0] == "-c":
        sys.argv = ["-c", *rest[2:]]
        exec(rest[1], {"__name__": "__main__"})
    elif rest[0] == "-m":
        sys.argv = rest[1:]
        runpy.run_module(rest[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = rest
        sys.path.insert(0, str(Path(rest[0]).parent))
        runpy.run_path(rest[0], run_name="__main__")


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    gc.freeze()  # what was imported is nobody's garbage, and its memory stays shared
    become(forked(socket.socket(fileno=int(sys.argv[1]))))
