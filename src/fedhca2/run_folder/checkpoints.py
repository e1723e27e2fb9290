"""Checkpoints: the whole federation between two rounds, in a folder that appears complete or not at all.

Rows for clients that are away wait in files, named by their content.
"""

import re
import shlex
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from fedhca2.aggregation.rows import MappedRow
from fedhca2.clients import ClientState, load_state, save_state
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.imports import NotAllowedError, only_allowed
from fedhca2.messages import Delivery, deliveries_as_data, deliveries_from_data
from fedhca2.params import Slot
from fedhca2.run_folder.records import Progress, ServerState
from fedhca2.whole_files import link_whole, private_folder, sync_file, sync_folder, write_whole

SERVER = "server.safetensors"
NAME = re.compile(r"round-\d{6,}")
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
        if content is None or _row_name(content) != path.name:
            found = "no file" if content is None else _row_name(content)
            raise ValueError(f"{path}: expected a row with the content of its name, got {found}")
        known = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
        kind = {str(each).removeprefix("torch."): each for each in known}.get(str(dtype))
        if kind is None or not isinstance(numel, int) or numel * kind.itemsize != len(content):
            raise ValueError(f"{path}: expected {numel} values of {dtype}, got {len(content)} bytes")
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
            place = private_folder(self.folder) / _row_name(content)
            write_whole(place, content, sync=False)  # a checkpoint does
        return WaitingRow.at(place, row.numel(), row.dtype)


def waiting_files(pending: Pending) -> Iterator[Path]:
    """The files of all rows that wait in one."""
    rows = (each.row for rows in pending.values() for delivery in rows.values() for each in delivery.addends)
    return iter(dict.fromkeys(row.path for row in rows if isinstance(row, WaitingRow)))


def _row_name(content: bytes) -> str:
    return f"row-{blake2b(content, digest_size=16).hexdigest()}"


class KeptClients(Protocol):
    """Clients that can save their states."""

    def save(self, folder: Path) -> Mapping[str, str]:
        """Write every client's state and return the checksums."""


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint, except the clients' states."""

    path: Path
    progress: Progress
    clients: Mapping[str, str]  # checksums of their states
    experiment: Experiment  # the settings it was made with
    notes: Mapping[str, Any]  # data that the run's folder needs on resuming


class Checkpoints:
    """The latest checkpoints of one run. Only their owner can read them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(
        self, progress: Progress, clients: KeptClients, experiment: Mapping[str, Any], notes: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint under a temporary name and rename it into place."""
        aside = private_folder(self.folder) / ".new"
        shutil.rmtree(aside, ignore_errors=True)
        try:
            checksums = dict(clients.save(private_folder(aside)))
            for file in waiting_files(progress.pending):
                sync_file(file)
                link_whole(file, aside / file.name)
            values = {"clients": checksums, "experiment": dict(experiment), "notes": dict(notes)}
            save_state(aside / SERVER, progress_as_state(progress, values))
        except OSError:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        place = self.folder / f"round-{progress.state.round:06d}"
        shutil.rmtree(place, ignore_errors=True)
        aside.rename(place)
        sync_folder(self.folder)

    def prune(self, keep: int) -> None:
        """Remove all but the latest."""
        for old in self._found()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def latest(self) -> Checkpoint | None:
        """Read the latest checkpoint, or return None.

        Raises UserError if it is damaged, or names code that is not allowed.
        """
        folders = self._found()
        if not folders:
            return None
        try:
            state = load_state(folders[-1] / SERVER)
            values = state.values
            progress = progress_from_state(state, folders[-1])
            if progress.state.round != _round(folders[-1]):
                raise ValueError(f"{folders[-1]}: expected round {_round(folders[-1])}, got {progress.state.round}")
            with only_allowed(folders[-1] / SERVER):
                experiment = Experiment.parse(values["experiment"])
            return Checkpoint(folders[-1], progress, values["clients"], experiment, values["notes"])
        except NotAllowedError:
            raise
        except (KeyError, TypeError) as error:
            raise unusable(folders[-1], f"{folders[-1]}: expected a checkpoint, got none with {error}") from None
        except ValueError as error:
            raise unusable(folders[-1], error) from None

    def _found(self) -> list[Path]:
        """All checkpoints in order; copies under other names do not count."""
        if not self.folder.is_dir():
            return []
        return sorted((path for path in self.folder.iterdir() if NAME.fullmatch(path.name)), key=_round)


def _round(path: Path) -> int:
    return int(path.name.removeprefix("round-"))


def unusable(checkpoint: Path, error: object) -> UserError:
    """The error for a damaged checkpoint. An earlier one is used only if the user decides so."""
    why = "; ".join(str(error).splitlines())
    return UserError("", f"{why}; remove {shlex.quote(str(checkpoint))} to continue from the checkpoint before it")


def progress_as_state(progress: Progress, beside: Mapping[str, Any]) -> ClientState:
    """Convert to tensors and JSON, with other values beside; a row that several clients get is stored once.

    Rows that wait in files are only named.
    """
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def place(row: Tensor) -> dict[str, Any]:
        if isinstance(row, WaitingRow):
            return {"file": row.path.name, "numel": row.numel(), "dtype": str(row.dtype).removeprefix("torch.")}
        if id(row) not in names:
            names[id(row)] = f"row/{len(names)}"
            tensors[names[id(row)]] = row.detach().cpu().clone()
        return {"row": names[id(row)]}

    pending = {client: deliveries_as_data(rows, place) for client, rows in progress.pending.items()}
    kept = {key: [place(row) for row in rows] for key, rows in progress.state.rows.items()}
    server = {"server": progress.state.to_dict(), "rows": kept, "at_work": dict(progress.at_work)}
    return ClientState(tensors, {**server, "pending": pending, **beside})


def progress_from_state(state: ClientState, folder: Path = Path()) -> Progress:
    """Restore what `progress_as_state` converted, with waiting rows in this folder."""
    opened: dict[str, WaitingRow] = {}

    def row(slot: Slot, each: Mapping[str, Any]) -> Tensor:
        name = each.get("file")
        if name is None:
            return state.tensors[each["row"]]
        if name not in opened:
            opened[name] = WaitingRow.read(folder / Path(name).name, each["numel"], each["dtype"])
        return opened[name]

    pending = {client: deliveries_from_data(data, row) for client, data in state.values["pending"].items()}
    kept = state.values.get("rows", {})  # older checkpoints have none
    rows = {key: tuple(state.tensors[each["row"]] for each in places) for key, places in kept.items()}
    server = replace(ServerState.from_dict(state.values["server"]), rows=rows)
    return Progress(server, pending, state.values.get("at_work", {}))
