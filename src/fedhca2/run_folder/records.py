"""What a federation hands to its folder after a round: where the run stands, and what the server did."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from fedhca2.aggregation import Measure, Mixing, Weights
from fedhca2.messages import Delivery
from fedhca2.params import Part, Slot


@dataclass(frozen=True)
class ServerState:
    """All that the server keeps between rounds: its round, and by 'client/slot' learned weights and recent moves.

    `kept` is what aggregators keep of each row's mixture.
    """

    round: int = 0
    weights: Mapping[str, Weights] = field(default_factory=dict)
    shares: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # of what rows could move: for the guard
    kept: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As data that JSON can hold, without loss."""
        weights = {key: {"value": [*w.value], "momentum": [*w.momentum]} for key, w in self.weights.items()}
        shares = {key: [*s] for key, s in self.shares.items()}
        return {"round": self.round, "weights": weights, "shares": shares, "kept": dict(self.kept)}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ServerState":
        """The state that `to_dict` wrote."""
        weights = {key: Weights(tuple(w["value"]), tuple(w["momentum"])) for key, w in data["weights"].items()}
        shares = {key: tuple(shares) for key, shares in data["shares"].items()}
        return cls(data["round"], weights, shares, data["kept"])


@dataclass(frozen=True)
class Progress:
    """Where a run stands between two rounds: the server's state, and what clients have still to be sent."""

    state: ServerState = field(default_factory=ServerState)
    pending: Mapping[str, Mapping[Slot, Delivery]] = field(default_factory=dict)


@dataclass(frozen=True)
class Aggregation:
    """How the rows of one part and layout were mixed: for reports."""

    part: Part
    members: tuple[str, ...]
    measure: Measure
    products: Tensor | None  # inner products of whole rows, [N, N], where they were measured
    mixing: Mixing


@dataclass(frozen=True)
class ServerRecord:
    """What the server did in a round: for reports."""

    round: int
    aggregations: tuple[Aggregation, ...]
    weights: Mapping[str, tuple[float, ...]]  # the values as applied, by 'client/slot'
    refused: Mapping[str, str]  # replies that were left out, by client, and why
    dropped: Mapping[str, str] = field(default_factory=dict)  # clients whose reply was used, but not their rows
