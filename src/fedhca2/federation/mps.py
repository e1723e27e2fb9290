"""NVIDIA's Multi-Process Service, with which the kernels of several processes run on a GPU at the same time."""

import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

PROGRAM = "nvidia-cuda-mps-control"
PIPE, LOG = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
USUAL = Path("/tmp/nvidia-mps")  # where CUDA looks for a daemon if the variables are not set
PATIENCE = 30  # seconds for the daemon to start or stop


@contextmanager
def shared_gpus(names: Sequence[str], usual: Path = USUAL) -> Iterator[tuple[Mapping[str, str], str]]:
    """Run MPS's daemon for GPUs with these UUIDs; yields the variables for its clients, and how GPUs are shared.

    A daemon that somebody else started is used and never stopped. Without the program, processes take turns.
    """
    program = shutil.which(PROGRAM)
    if {PIPE, LOG} & set(os.environ) or _is_alive(usual / f"{PROGRAM}.pid"):
        yield {}, "with the MPS daemon that is there"
        return
    if program is None:
        yield {}, f"without MPS, since there is no {PROGRAM}: runs take turns"
        return
    # Only this user can read the folder, and the daemon may still write to it when it quits.
    with TemporaryDirectory(prefix="fedhca2-mps-", ignore_cleanup_errors=True) as folder:
        own = {PIPE: f"{folder}/pipe", LOG: f"{folder}/log"}
        for place in own.values():
            Path(place).mkdir()
        own["CUDA_VISIBLE_DEVICES"] = ",".join(names)  # the daemon renumbers its GPUs, but a UUID stays the same
        daemon = {**os.environ, **own}
        fault = _call([program, "-d"], daemon)
        if fault:
            yield {}, f"without MPS, whose daemon did not start ({fault}): runs take turns"
            return
        try:
            yield own, "with MPS"
        finally:
            if fault := _call([program], daemon, "quit\n"):
                print(f"{PROGRAM}: could not be stopped ({fault}); its folder was {folder}", flush=True)


def _call(command: list[str], environment: Mapping[str, str], told: str = "") -> str:
    """Call the program; returns what went wrong, or an empty text."""
    nowhere = subprocess.DEVNULL  # a daemon would keep pipes open
    try:
        done = subprocess.run(
            command, env=environment, input=told, text=True, timeout=PATIENCE, stdout=nowhere, stderr=nowhere
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return f"exit code {done.returncode}" if done.returncode else ""


def _is_alive(pid_file: Path) -> bool:
    """Whether the process named in a file exists."""
    try:
        os.kill(int(pid_file.read_text("utf-8")), 0)
    except PermissionError:
        return True  # it is another user's
    except (OSError, ValueError):
        return False
    return True
