"""One process at a time works in a run's folder."""

import os
from pathlib import Path

from filelock import FileLock, Timeout

from fedhca2.errors import UserError
from fedhca2.run_folder.names import LOCK


def require_own_files(folder: Path) -> None:
    """Raise UserError unless a run's folder holds only files and folders: writing through a link changes another's."""
    for parent, folders, files in os.walk(folder):
        for path in (Path(parent, name) for name in (*folders, *files)):
            if path.is_symlink() or not (path.is_file() or path.is_dir()):
                found = f"a link to {path.readlink()}" if path.is_symlink() else "something else"
                raise UserError(path, f"expected a file or a folder of the run, got {found}")


def lock_folder(folder: Path) -> FileLock:
    """Lock a folder until the lock is released; the system releases it if the process dies."""
    lock = FileLock(folder / LOCK, timeout=0.2)  # seconds: `in_use` holds a lock for a moment
    try:
        lock.acquire()
    except Timeout:
        raise UserError(folder, "another process is working in this folder") from None
    return lock


def in_use(folder: Path) -> bool:
    """Whether a process works in this folder, or may: a lock that we cannot try tells nothing."""
    if not (folder / LOCK).exists():
        return False
    try:
        with FileLock(folder / LOCK, timeout=0):
            return False
    except (Timeout, OSError):
        return True
