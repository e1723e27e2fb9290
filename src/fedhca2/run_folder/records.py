"""What a federation saves after a round: what the server did, and a checkpoint of the whole run; and who may watch it.

A checkpoint is a folder that appears complete or not at all.
"""

import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedhca2.aggregation import Measure, Mixing, Weights
from fedhca2.clients import ClientState, load_state, save_state
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.imports import NotAllowedError, only_allowed
from fedhca2.messages import Delivery, Order, Reply, deliveries_as_data, deliveries_from_data
from fedhca2.params import Part, Slot
from fedhca2.whole_files import private_folder, sync_file

SERVER = "server.safetensors"
NAME = re.compile(r"round-\d{6,}")
SaveClients = Callable[[Path], Mapping[str, str]]  # writes every client's state to a folder, and returns the checksums


class SlotKey(NamedTuple):
    """One client's row: the key of what the server keeps for it. In files it is text.

    >>> str(SlotKey("road", Slot("decoder", "semseg"))), SlotKey.parse("road/encoder")
    ('road/decoder.semseg', SlotKey(client='road', slot=Slot(part='encoder', task='')))
    """

    client: str
    slot: Slot

    def __str__(self) -> str:
        return f"{self.client}/{self.slot}"

    @classmethod
    def parse(cls, text: str) -> "SlotKey":
        """Parse what `str` wrote."""
        client, _, slot = text.rpartition("/")
        return cls(client, Slot.parse(slot))


@dataclass(frozen=True)
class ServerState:
    """Everything the server keeps between rounds.

    `rows` are what aggregators that keep rows have for each part and layout. Everything else is small numbers.
    """

    round: int = 0
    weights: Mapping[SlotKey, Weights] = field(default_factory=dict)  # learned α and β
    shares: Mapping[SlotKey, tuple[float, ...]] = field(default_factory=dict)  # recent moves, for the guard
    kept: Mapping[SlotKey, float] = field(default_factory=dict)  # what aggregators remember of each row's mixture
    rows: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Progress:
    """The state of a run between two rounds: the server's state, and the rows still to be sent to clients.

    Clients still at work on an order of an earlier round are named with that round; the rows are those of that order.
    """

    state: ServerState = field(default_factory=ServerState)
    pending: Mapping[str, Mapping[Slot, Delivery]] = field(default_factory=dict)
    at_work: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Aggregation:
    """How the rows of one part and layout were mixed, for reports."""

    part: Part
    members: tuple[str, ...]
    measure: Measure
    products: Tensor | None  # inner products of whole rows, [N, N], if they were measured
    mixing: Mixing


class Lateness(NamedTuple):
    """How many rounds late a reply was, and how often it counted."""

    rounds: int
    weight: float


@dataclass(frozen=True)
class ServerRecord:
    """What the server did in a round, for reports."""

    round: int
    aggregations: tuple[Aggregation, ...]
    weights: Mapping[SlotKey, tuple[float, ...]]  # the applied values
    refused: Mapping[str, str] = field(default_factory=dict)  # refused replies: the reason by client
    dropped: Mapping[str, str] = field(default_factory=dict)  # clients whose rows alone were refused: the reason
    unused: Sequence[str] = ()  # clients that sent an update in a refused reply
    late: Mapping[str, Lateness] = field(default_factory=dict)  # replies to orders of earlier rounds, by client


class Watcher:
    """Follows a run. Every method does nothing here; a watcher overrides those that it needs."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """A run starts. Its Local baseline, if it has one, is a separate run before it."""

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """A client has trained on `done` of the `total` batches of this round."""

    def replied(self, order: Order, reply: Reply) -> None:
        """A client has answered an order, and its answer is used."""

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """A round is over, after this many seconds."""

    def logged(self, run: Path, event: dict[str, Any]) -> None:
        """An event was logged in the folder of a run."""


class Watchers(Watcher):
    """Several watchers, each of which gets every event, in this order."""

    def __init__(self, *watchers: Watcher) -> None:
        for name in [name for name in vars(Watcher) if not name.startswith("_")]:
            setattr(self, name, partial(_call_all, [getattr(watcher, name) for watcher in watchers]))


def _call_all(calls: Iterable[Callable[..., None]], *values: Any) -> None:
    for call in calls:
        call(*values)


@dataclass(frozen=True)
class Checkpoint:
    """The content of a checkpoint, except the clients' states."""

    path: Path
    progress: Progress
    clients: Mapping[str, str]  # checksums of their states
    experiment: Experiment  # the settings it was made with
    notes: Mapping[str, Any]  # data that the run's folder needs on resuming


@dataclass(frozen=True)
class Checkpoints:
    """The latest checkpoints of one run. Only their owner can read them."""

    folder: Path

    def save(
        self, progress: Progress, save_clients: SaveClients, experiment: Mapping[str, Any], notes: Mapping[str, Any]
    ) -> None:
        """Write a checkpoint under a temporary name and rename it at the end."""
        temporary = private_folder(self.folder) / ".new"
        shutil.rmtree(temporary, ignore_errors=True)
        try:
            checksums = dict(save_clients(private_folder(temporary)))
            values = {"clients": checksums, "experiment": dict(experiment), "notes": dict(notes)}
            save_state(temporary / SERVER, progress_as_state(progress, values))
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        path = self.folder / f"round-{progress.state.round:06d}"
        shutil.rmtree(path, ignore_errors=True)
        temporary.rename(path)
        sync_file(self.folder)

    def prune(self, keep: int) -> None:
        """Remove all but the latest."""
        for old in self._list()[:-keep]:
            shutil.rmtree(old, ignore_errors=True)

    def latest(self) -> Checkpoint | None:
        """Read the latest checkpoint, or return None.

        Raises UserError if it is damaged, or names code that is not allowed.
        """
        folders = self._list()
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

    def _list(self) -> list[Path]:
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


def progress_as_state(progress: Progress, notes: Mapping[str, Any]) -> ClientState:
    """Convert to tensors and JSON, with these notes; a row that several clients get is stored once."""
    tensors: dict[str, Tensor] = {}
    names: dict[int, str] = {}

    def store(row: Tensor) -> dict[str, Any]:
        if id(row) not in names:
            names[id(row)] = f"row/{len(names)}"
            tensors[names[id(row)]] = row.detach().cpu().clone()
        return {"row": names[id(row)]}

    pending = {client: deliveries_as_data(rows, store) for client, rows in progress.pending.items()}
    state = progress.state
    server = {
        "round": state.round,
        "weights": {str(key): {"value": [*w.value], "momentum": [*w.momentum]} for key, w in state.weights.items()},
        "shares": {str(key): [*shares] for key, shares in state.shares.items()},
        "kept": {str(key): value for key, value in state.kept.items()},
    }
    rows_by_key = {key: [store(row) for row in rows] for key, rows in state.rows.items()}
    values = {"server": server, "rows": rows_by_key, "at_work": dict(progress.at_work), "pending": pending}
    return ClientState(tensors, {**values, **notes})


def progress_from_state(state: ClientState, folder: Path = Path()) -> Progress:
    """Restore what `progress_as_state` converted; older checkpoints have some of the rows in files of this folder."""

    def row(slot: Slot, each: Mapping[str, Any]) -> Tensor:
        return _read_row(folder, each) if "file" in each else state.tensors[each["row"]]

    pending = {client: deliveries_from_data(data, row) for client, data in state.values["pending"].items()}
    stored = state.values.get("rows", {})  # older checkpoints have none
    rows = {key: tuple(state.tensors[each["row"]] for each in refs) for key, refs in stored.items()}
    server, parse = state.values["server"], SlotKey.parse
    weights = {parse(key): Weights(tuple(w["value"]), tuple(w["momentum"])) for key, w in server["weights"].items()}
    shares = {parse(key): tuple(values) for key, values in server["shares"].items()}
    kept = {parse(key): value for key, value in server["kept"].items()}
    at_work = state.values.get("at_work", {})
    return Progress(ServerState(server["round"], weights, shares, kept, rows), pending, at_work)


def _read_row(folder: Path, about: Mapping[str, Any]) -> Tensor:
    """A row of an older checkpoint in a file of its own, which is named by its content; raises ValueError."""
    path, numel = folder / Path(about["file"]).name, about["numel"]
    content = path.read_bytes() if path.is_file() else b""
    if path.name != f"row-{blake2b(content, digest_size=16).hexdigest()}":
        raise ValueError(f"{path}: expected a row with the content of its name")
    kinds = {str(kind): kind for kind in (torch.float32, torch.float64, torch.bfloat16, torch.float16)}
    kind = kinds.get(f"torch.{about['dtype']}")
    if kind is None or not isinstance(numel, int) or numel * kind.itemsize != len(content):
        raise ValueError(f"{path}: expected {numel} values of {about['dtype']}, got {len(content)} bytes")
    return torch.frombuffer(bytearray(content), dtype=kind)
