"""Processes that end with their parent."""

import ctypes
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from fedhca2.federation.flower import QUIET

PATIENCE = 15.0  # seconds for a process to end by itself
PR_SET_PDEATHSIG = 1


def start(command: Sequence[str], home: Path, log: Path | None = None) -> "subprocess.Popen[bytes]":
    """Start a command of this environment with its own Flower home; it is told to end when this process ends."""
    home.mkdir(parents=True, exist_ok=True)
    output = log.open("ab") if log else None
    beside = Path(sys.executable).parent
    path = f"{beside}{os.pathsep}{os.environ['PATH']}"
    # Parallel processes use one thread each, like clients in one process, so that the results are the same bits.
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **QUIET, "FLWR_HOME": str(home), "PATH": path}
    try:
        return subprocess.Popen(
            [_executable(command[0]), *command[1:]],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,  # Ctrl-C only reaches this process, which stops the others in order
            preexec_fn=_end_with_parent if sys.platform == "linux" else None,
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


def free_port() -> int:
    """A free port on loopback."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _executable(name: str) -> str:
    beside = Path(sys.executable).parent / name
    executable = str(beside) if beside.exists() else shutil.which(name)
    if executable is None:
        raise FileNotFoundError(f"{name}: should be installed with pip install 'fedhca2[flower]', found nothing")
    return executable


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
