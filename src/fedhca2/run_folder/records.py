"""What a federation saves after a round: the state of the run, and what the server did; and who may watch it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from fedhca2.aggregation import Measure, Mixing, Weights
from fedhca2.experiment import Experiment, Shard
from fedhca2.messages import Delivery, Order, Reply
from fedhca2.params import Part, Slot


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

    def to_dict(self) -> dict[str, Any]:
        """Convert all but the rows to JSON data without loss."""
        weights = {str(key): {"value": [*w.value], "momentum": [*w.momentum]} for key, w in self.weights.items()}
        shares = {str(key): [*s] for key, s in self.shares.items()}
        kept = {str(key): value for key, value in self.kept.items()}
        return {"round": self.round, "weights": weights, "shares": shares, "kept": kept}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ServerState":
        """Restore the state from `to_dict`, without rows."""
        parse = SlotKey.parse
        weights = {parse(key): Weights(tuple(w["value"]), tuple(w["momentum"])) for key, w in data["weights"].items()}
        shares = {parse(key): tuple(shares) for key, shares in data["shares"].items()}
        kept = {parse(key): value for key, value in data["kept"].items()}
        return cls(data["round"], weights, shares, kept)


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
            calls = [getattr(watcher, name) for watcher in watchers]
            setattr(self, name, partial(_call_all, calls))


def _call_all(calls: Iterable[Callable[..., None]], *values: Any) -> None:
    for call in calls:
        call(*values)
