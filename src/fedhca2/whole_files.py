"""Writing files and folders that are complete or absent, and private by default."""

import os
from pathlib import Path

PRIVATE, ORDINARY = 0o600, 0o666  # readable by the owner alone, or as the umask allows


def write_whole(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Write a file with this mode under a temporary name, fsync it, and rename it into place."""
    aside = path.with_name(f".{path.name}.new")
    try:
        aside.unlink(missing_ok=True)
        with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from None
    aside.replace(path)
    sync_folder(path.parent)


def private_folder(path: Path) -> Path:
    """A folder that only its owner can read; created with its parents if missing."""
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to disk, if the system can open folders for that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
