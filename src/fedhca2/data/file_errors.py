"""Errors that name a file of a data set."""

from pathlib import Path


class FileError(ValueError):
    """A fault in one file of a data set."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path}: {fault}")
        self.path = path
        self.fault = fault


class MissingFileError(FileError):
    """A file is missing."""


class BrokenFileError(FileError):
    """A file does not hold what it should."""
