"""Processes that end with their parent, and the sockets that they listen on."""

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from functools import partialmethod
from pathlib import Path

import uvicorn

from fedhca2.errors import UserError
from fedhca2.federation.flower import QUIET

PATIENCE = 4.0  # seconds for a process to end by itself
# A small process becomes the command after it has asked for SIGTERM at its parent's end (PR_SET_PDEATHSIG), which
# outlives exec. Between fork and exec, a process with threads must not run Python.
LAUNCHER = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def start(
    command: Sequence[str], home: Path, log: Path | None = None, listening: socket.socket | None = None
) -> "subprocess.Popen[bytes]":
    """Start a command of this environment with its own Flower home; it is told to end when the calling thread ends.

    Its standard input is the socket that it should listen on, if there is one.
    """
    home.mkdir(parents=True, exist_ok=True)
    output = log.open("ab") if log else None
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    # Parallel processes use one thread each, like clients in one process, so that the results are the same bits.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}
    launcher = [sys.executable, "-IS", "-c", LAUNCHER, str(os.getpid())] if sys.platform == "linux" else []
    try:
        return subprocess.Popen(
            [*launcher, _executable(command[0]), *command[1:]],
            env=environment,
            stdin=subprocess.DEVNULL if listening is None else listening.fileno(),
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,  # Ctrl-C only reaches this process, which stops the others in order
        )
    finally:
        if output:
            output.close()


def stop(processes: Iterable["subprocess.Popen[bytes]"]) -> None:
    """Ask all to end, and kill those that do not."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    end = time.monotonic() + PATIENCE
    for process in running:
        try:
            process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def host_and_port(address: str, option: str) -> tuple[str, int]:
    """Split HOST:PORT, with an IPv6 address in brackets; raises UserError, which names the option, if it is not."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UserError([f"{option}: expected HOST:PORT, got {address!r}"])
    return host, int(port)


def listen(address: str, option: str) -> tuple[socket.socket, str]:
    """Listen on HOST:PORT, where port 0 is any that is free; returns the socket, and its address with the port.

    Raises UserError, which names the option, if that is impossible.
    """
    host, port = host_and_port(address, option)
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listening = socket.create_server((host.strip("[]"), port), family=family, backlog=512)
    except OSError as error:
        why = str(error.strerror).partition(" (")[0]  # Python adds the address
        raise UserError([f"{option}: expected an address to listen on, got {address}: {why}"]) from None
    return listening, f"{host}:{listening.getsockname()[1]}"


def given_socket() -> socket.socket:
    """The socket to listen on that this process was started with."""
    return socket.socket(fileno=os.dup(sys.stdin.fileno()))


def serve_given_socket() -> None:
    """Let the server of any command that this process runs use the socket it was started with."""
    given = partialmethod(uvicorn.Server.run, [given_socket()])
    uvicorn.Server.run = given  # type: ignore[method-assign, assignment]


def _executable(name: str) -> str:
    beside = Path(sys.executable).parent / name
    executable = str(beside) if beside.exists() else shutil.which(name)
    if executable is None:
        raise FileNotFoundError(f"{name}: should be installed with pip install 'fedhca2[flower]', found nothing")
    return executable
