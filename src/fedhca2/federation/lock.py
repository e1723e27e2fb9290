"""One process at a time on a run's folder."""

import fcntl
from pathlib import Path
from typing import IO

from fedhca2.experiment import ConfigError

NAME = ".lock"


def lock_folder(folder: Path) -> IO[str]:
    """Take a folder for as long as the file that is returned stays open; the system lets go when a process dies."""
    file = (folder / NAME).open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ConfigError([f"{folder}: another process is working on this run"]) from None
    return file
