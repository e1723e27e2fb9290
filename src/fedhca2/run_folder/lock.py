"""One process at a time on a run's folder."""

from pathlib import Path

from filelock import FileLock, Timeout

from fedhca2.errors import UserError

NAME = ".lock"


def lock_folder(folder: Path) -> FileLock:
    """Take a folder until the lock is released; the system lets go when a process dies."""
    lock = FileLock(folder / NAME, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise UserError([f"{folder}: another process is working on this run"]) from None
    return lock
