"""The messages between server and clients: orders down, replies up, and the profile that introduces a client.

Nothing else is sent. Rows are flat tensors in the layout that the profile names; the rest are small numbers.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, NamedTuple

from torch import Tensor

from fedhca2.params import Layout, Part, Slot

Kind = Literal["updates", "parameters"]
Base = Literal["trained", "start", "nothing"]
BatchNorm = Literal["local", "average", "recalibrate"]  # what aggregation does with running statistics


@dataclass(frozen=True)
class Profile:
    """What the server needs to know about a client."""

    client: str
    dataset: str
    tasks: tuple[str, ...]
    samples: int
    layouts: Mapping[Slot, Layout]
    backbone: str = ""  # fingerprint of a frozen backbone, which all rows of these layouts are trained on
    classes: Mapping[str, str] = field(default_factory=dict)  # digests of its tasks' class names, where it has names


@dataclass(frozen=True)
class Addend:
    """A row to add, scaled by one number or by one per layer.

    A client keeps a row marked `remember`, and reports its inner product with the next update.
    """

    row: Tensor
    scale: tuple[float, ...] = (1.0,)
    remember: bool = False


@dataclass(frozen=True)
class Delivery:
    """A slot's next value: base + Σ scale · row. The base is the client's value after or before training, or none."""

    base: Base
    addends: tuple[Addend, ...]

    @property
    def row(self) -> Tensor | None:
        """The next value itself, if it is a single unscaled row."""
        alone = self.base == "nothing" and len(self.addends) == 1 and self.addends[0].scale == (1.0,)
        return self.addends[0].row if alone else None


@dataclass(frozen=True)
class Order:
    """An order to one client: take these rows, then evaluate, then train, then send those parts.

    `compare` asks what the rows did to its validation loss. `finish` marks the order with the last rows: the client
    fine-tunes first if the method says so.
    """

    round: int
    deliveries: Mapping[Slot, Delivery] = field(default_factory=dict)
    finish: bool = False
    compare: bool = False
    evaluate: bool = False
    train: bool = True
    upload: Mapping[Part, Kind] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows and their scales (8 each)."""
        addends = [addend for delivery in self.deliveries.values() for addend in delivery.addends]
        return sum(addend.row.nbytes + 8 * len(addend.scale) for addend in addends)


class Effect(NamedTuple):
    """A client's validation loss before and after it took the server's rows, and how long it took to measure."""

    before: float
    after: float
    seconds: float


@dataclass(frozen=True)
class Reply:
    """A client's answer to an order."""

    client: str
    round: int
    rows: Mapping[Slot, Tensor] = field(default_factory=dict)
    agreement: Mapping[Slot, tuple[float, ...]] = field(default_factory=dict)
    losses: Mapping[str, float] = field(default_factory=dict)
    metrics: dict[str, dict[str, float]] = field(default_factory=dict)
    seconds: float = 0.0
    steps: int = 1  # that its model took in this round
    failed: str = ""  # why the client has nothing to send
    declined: str = ""  # which part of its order it did not do, and why: rows it rejected, scores it keeps
    effect: Effect | None = None  # of the rows, if the order asked for it

    @property
    def nbytes(self) -> int:
        """Bytes of the rows, of every number (8 each), and of the messages."""
        numbers = sum(len(values) for values in self.agreement.values()) + len(self.losses)
        numbers += sum(len(values) for values in self.metrics.values()) + len(self.effect or ())
        words = len(self.failed.encode()) + len(self.declined.encode())
        return sum(row.nbytes for row in self.rows.values()) + 8 * numbers + words


def deliveries_as_data(
    deliveries: Mapping[Slot, Delivery], locate: Callable[[Tensor], Mapping[str, Any]]
) -> dict[str, Any]:
    """Convert deliveries to JSON data; `locate` gives the location of a row."""
    data = {}
    for slot, delivery in deliveries.items():
        addends = [{**locate(a.row), "scale": a.scale, "remember": a.remember} for a in delivery.addends]
        data[str(slot)] = {"base": delivery.base, "addends": addends}
    return data


def deliveries_from_data(
    data: Mapping[str, Any], row: Callable[[Slot, Mapping[str, Any]], Tensor]
) -> dict[Slot, Delivery]:
    """Restore deliveries from `deliveries_as_data`; `row` finds the row of a slot."""
    deliveries = {}
    for slot, values in ((Slot.parse(text), values) for text, values in data.items()):
        addends = [Addend(row(slot, a), tuple(map(float, a["scale"])), bool(a["remember"])) for a in values["addends"]]
        deliveries[slot] = Delivery(values["base"], tuple(addends))
    return deliveries


def reply_as_data(reply: Reply) -> dict[str, Any]:
    """Convert a reply, except its rows, to JSON data."""
    values = {each.name: getattr(reply, each.name) for each in fields(reply) if each.name != "rows"}
    return {**values, "agreement": {str(slot): values for slot, values in reply.agreement.items()}}


def reply_from_data(data: Mapping[str, Any], rows: Mapping[Slot, Tensor]) -> Reply:
    """Restore a reply from `reply_as_data`, with its rows; other keys of `data` are ignored."""
    values = {each.name: data[each.name] for each in fields(Reply) if each.name in data}
    values["agreement"] = {Slot.parse(slot): tuple(each) for slot, each in data["agreement"].items()}
    values["effect"] = Effect(*data["effect"]) if data.get("effect") else None
    return Reply(**{**values, "rows": rows})
