"""Processes that end with their parent, the sockets that they listen on, and Flower's commands as they run here.

`python -m fedhca2.federation.flower.deploy.processes superlink OPTIONS` runs `flower-superlink` with these options, and
`supernode` runs `flower-supernode`, both on the socket that is their standard input.
"""

import hmac
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Sequence
from functools import partialmethod
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fedhca2.errors import UserError
from fedhca2.federation.flower import QUIET, internals
from fedhca2.federation.flower.deploy.superlink import TOKEN, host_and_port, operator_token

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
    """Start a command of this environment; it gets SIGTERM when the calling thread ends.

    :param home: its own Flower home.
    :param log: the file to append its output to; by default it goes where this process's goes.
    :param listening: the socket that it should listen on, as its standard input.
    """
    home.mkdir(parents=True, exist_ok=True)
    output = log.open("ab") if log else None
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    # Parallel processes use one thread each, like clients in one process, so that the results are the same bits.
    # With -m, Python would look for modules in the working directory first, which may be anyone's.
    own = {"FLWR_HOME": str(home), "PATH": path, "PYTHONSAFEPATH": "1"}
    environment = {"OMP_NUM_THREADS": "1", **os.environ, **QUIET, **own}
    executable = shutil.which(command[0], path=path)
    if executable is None:
        raise FileNotFoundError(f"{command[0]} is not installed; run: pip install 'fedhca2[flower]'")
    launcher = [sys.executable, "-IS", "-c", LAUNCHER, str(os.getpid())] if sys.platform == "linux" else []
    try:
        return subprocess.Popen(
            [*launcher, executable, *command[1:]],
            env=environment,
            stdin=subprocess.DEVNULL if listening is None else listening.fileno(),
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            start_new_session=True,  # Ctrl-C only reaches this process, which stops the others in order
        )
    finally:
        if output:
            output.close()


def stop(processes: Iterable["subprocess.Popen[bytes]"], seconds: float = 4.0) -> None:
    """Ask all to end, and kill those that have not done so within this time."""
    running = [process for process in processes if process.poll() is None]
    for process in running:
        process.terminate()
    end = time.monotonic() + seconds
    for process in running:
        try:
            process.wait(max(end - time.monotonic(), 0.1))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


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
        raise UserError(option, f"expected an address to listen on, got {address}: {why}") from None
    return listening, f"{host}:{listening.getsockname()[1]}"


def inherited_socket() -> socket.socket:
    """The socket to listen on that this process was started with."""
    return socket.socket(fileno=os.dup(sys.stdin.fileno()))


def run_superlink() -> None:
    """Run `flower-superlink` for holders of the operator's token: the proxy and the coordinator's own commands.

    Flower's control API has no authentication, so on a machine with several users, each of them could register keys.
    Here every request must carry a token that only a reader of the secret's file can compute.
    """
    run = uvicorn.run

    def run_guarded(app: FastAPI, **options: Any) -> None:
        token = operator_token(app.state.superexec_auth_secret).encode()

        async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
            shown = dict(scope.get("headers", ())).get(TOKEN.encode(), b"")
            if scope["type"] == "lifespan" or hmac.compare_digest(shown, token):
                await app(scope, receive, send)
            elif scope["type"] == "http":
                await PlainTextResponse("this SuperLink is for its coordinator", 403)(scope, receive, send)

        run(guarded, **options)

    uvicorn.run = run_guarded  # type: ignore[assignment]
    internals.flower_superlink()


def run_supernode() -> None:
    """Run `flower-supernode`, and end with it, or with the first of its threads that fails; the site starts it again.

    Flower's command stays when it has given up on the SuperLink, and never gets another message: after a TLS handshake
    that times out, which takes no more than a busy network or proxy, or after a heartbeat with an unexpected answer.
    """

    def end(error: BaseException | None = None) -> None:
        if error is not None:
            logging.getLogger("fedhca2.site").error("the SuperNode failed", exc_info=error)
        sys.stdout.flush()
        os._exit(1)

    threading.excepthook = lambda failed: end(failed.exc_value)
    try:
        internals.flower_supernode()
    except Exception as error:
        end(error)
    end()


def main() -> None:
    """Run the command of Flower that the first argument names, with the socket that this process was started with."""
    command = {"superlink": run_superlink, "supernode": run_supernode}[sys.argv.pop(1)]
    run = partialmethod(uvicorn.Server.run, [inherited_socket()])
    uvicorn.Server.run = run  # type: ignore[method-assign, assignment]
    command()


if __name__ == "__main__":
    main()
