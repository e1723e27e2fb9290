"""Files and folders that are whole or not there, and private unless said otherwise."""

import os
from pathlib import Path

PRIVATE, ORDINARY = 0o600, 0o666  # who may read a file: its owner alone, or whoever the umask lets


def write_whole(path: Path, data: bytes, mode: int = PRIVATE) -> None:
    """Write a file aside, make sure that it is on the disk, and put it in its place; nobody else can read it before."""
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
    """A folder that its owner alone can look into; made if it is missing, with those above it."""
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk, where a folder can be opened for that."""
    if os.name == "nt":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
