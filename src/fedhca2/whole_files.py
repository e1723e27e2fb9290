"""Writing files and folders that are complete or absent, and private by default."""

import errno
import os
import re
import stat
from collections.abc import Container, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from secrets import token_hex

NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.EXDEV, errno.EMLINK)
PRIVATE, ORDINARY = 0o600, 0o666  # readable by the owner alone, or as the umask allows


@contextmanager
def put_in_place(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder to write to, and rename it at the end.

    If that fails, as on a full disk, nothing is left of it, and the error names the path. Every writer has a temporary
    path of its own: of several that write at the same time, the last one wins.
    """
    aside = path.with_name(f".{path.name}.{token_hex(4)}.new")
    try:
        yield aside
        aside.replace(path)
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), str(path)) from None
    finally:
        aside.unlink(missing_ok=True)


def is_leftover(path: Path, names: Container[str]) -> bool:
    """Whether this is what a killed process left of writing a file with one of these names."""
    left = re.fullmatch(r"\.(.+?)(\.[0-9a-f]{8})?\.new", path.name)
    return left is not None and left[1] in names


def write_whole(path: Path, data: bytes, mode: int = PRIVATE, *, sync: bool = True) -> None:
    """Write a file with this mode under a temporary name, fsync it, and rename it.

    Without `sync`, a file whose system crashes may be incomplete.
    """
    with put_in_place(path) as aside, open(aside, "xb", opener=partial(os.open, mode=mode)) as file:
        file.write(data)
        file.flush()
        if sync:
            os.fsync(file.fileno())
    if sync:
        sync_file(path.parent)


def link_whole(path: Path, target: Path) -> None:
    """Give a whole file another name, or copy it where files have only one. Neither may be changed in place."""
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        write_whole(target, path.read_bytes(), stat.S_IMODE(path.stat().st_mode))


def require_empty(folder: Path) -> None:
    """Raise FileExistsError unless a folder is new or empty."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        got = "one with files in it" if folder.is_dir() else "a file"
        raise FileExistsError(f"{folder}: expected a new or empty folder, got {got}")


def private_folder(path: Path) -> Path:
    """A folder that only its owner can read; created with its parents if missing."""
    for folder in reversed((path, *path.parents)):
        if not folder.exists():
            folder.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_mode & 0o077:
        path.chmod(0o700)
    return path


def sync_file(path: Path) -> None:
    """Flush a file, or a folder's entries, to disk; Windows cannot open folders for that."""
    if os.name == "nt" and path.is_dir():
        return
    flags = os.O_RDWR if os.name == "nt" else os.O_RDONLY  # Windows flushes only what may be written
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
