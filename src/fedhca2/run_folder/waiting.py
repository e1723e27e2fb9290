"""Rows for clients that are away: they wait in files, named by their content."""

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from hashlib import blake2b
from pathlib import Path

import torch
from torch import Tensor

from fedhca2.aggregation.rows import MappedRow
from fedhca2.messages import Delivery
from fedhca2.params import Slot
from fedhca2.whole_files import link_whole, private_folder, write_whole

TYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
Pending = Mapping[str, Mapping[Slot, Delivery]]


class WaitingRow(MappedRow):
    """A row in a file, which takes no memory before it is read."""

    path: Path

    @classmethod
    def at(cls, path: Path, numel: int, dtype: torch.dtype) -> "WaitingRow":
        """The row in this file."""
        row = cls.open(path, numel, dtype).as_subclass(cls)
        row.path = path
        return row

    @classmethod
    def read(cls, path: Path, numel: object, dtype: object) -> "WaitingRow":
        """The row in this file; raises ValueError if the file is not what its name, length and type say."""
        content = path.read_bytes() if path.is_file() else None
        if content is None or _name(content) != path.name:
            found = "no file" if content is None else _name(content)
            raise ValueError(f"{path}: should be a row with the content of its name, found {found}")
        kind = TYPES.get(str(dtype))
        if kind is None or not isinstance(numel, int) or numel * kind.itemsize != len(content):
            raise ValueError(f"{path}: should be {numel} values of {dtype}, found {len(content)} bytes")
        return cls.at(path, numel, kind)


class WaitingRows:
    """The rows of one run that wait for absent clients, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(self, pending: Pending) -> dict[str, dict[Slot, Delivery]]:
        """Move rows to files, each once, and remove the files of all others."""
        moved: dict[int, Tensor] = {}

        def waiting(row: Tensor) -> Tensor:
            if id(row) not in moved:
                moved[id(row)] = self._moved(row)
            return moved[id(row)]

        kept = {
            client: {
                slot: replace(
                    delivery, addends=tuple(replace(each, row=waiting(each.row)) for each in delivery.addends)
                )
                for slot, delivery in rows.items()
            }
            for client, rows in pending.items()
        }
        used = set(waiting_files(kept))
        for file in self.folder.iterdir() if self.folder.is_dir() else ():
            if file not in used:
                file.unlink()
        return kept

    def clear(self) -> None:
        """Remove all files."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def _moved(self, row: Tensor) -> Tensor:
        if isinstance(row, WaitingRow) and row.path.parent == self.folder:
            return row
        if not row.numel():
            return row
        if isinstance(row, WaitingRow):  # of a checkpoint, which will be removed
            place = private_folder(self.folder) / row.path.name
            if not place.exists():  # a row with the same content may be there
                link_whole(row.path, place)
        else:
            content = row.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
            place = private_folder(self.folder) / _name(content)
            write_whole(place, content, sync=False)  # a checkpoint does
        return WaitingRow.at(place, row.numel(), row.dtype)


def waiting_files(pending: Pending) -> Iterator[Path]:
    """The files of all rows that wait in one."""
    rows = (each.row for rows in pending.values() for delivery in rows.values() for each in delivery.addends)
    return iter(dict.fromkeys(row.path for row in rows if isinstance(row, WaitingRow)))


def _name(content: bytes) -> str:
    return f"row-{blake2b(content, digest_size=16).hexdigest()}"
