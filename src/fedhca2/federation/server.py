"""The server's part of a round: learn the weights, aggregate, and say what every client adds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedhca2.aggregation import Aggregator, Measure, Member, Mixing, Rows, Weights
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.guard import Admission, Expected, admit
from fedhca2.messages import Addend, Delivery, Profile, Reply
from fedhca2.methods import Method
from fedhca2.params import Layout, Part, Slot

Deliveries = dict[str, dict[Slot, Delivery]]


@dataclass(frozen=True)
class ServerState:
    """All that the server keeps between rounds: its round, learned weights by 'client/slot', and norms of late rows."""

    round: int = 0
    weights: Mapping[str, Weights] = field(default_factory=dict)
    norms: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by part, for the guard

    def to_dict(self) -> dict[str, Any]:
        """As data that JSON can hold, without loss."""
        weights = {key: {"value": [*w.value], "momentum": [*w.momentum]} for key, w in self.weights.items()}
        return {"round": self.round, "weights": weights, "norms": {part: [*n] for part, n in self.norms.items()}}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ServerState":
        """The state that `to_dict` wrote."""
        weights = {key: Weights(tuple(w["value"]), tuple(w["momentum"])) for key, w in data["weights"].items()}
        return cls(data["round"], weights, {part: tuple(norms) for part, norms in data["norms"].items()})


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


@dataclass(frozen=True)
class _Entry:
    """One row of a part, with its place in the federation."""

    client: str
    slot: Slot
    member: Member
    row: Tensor

    @property
    def key(self) -> str:
        return f"{self.client}/{self.slot}"


class Server:
    """Turns replies into deliveries. It holds no rows and no models, and its state is passed in and out."""

    def __init__(self, method: Method, profiles: Iterable[Profile], guard: GuardBounds | None = None) -> None:
        self.method = method
        self.guard = guard or GuardBounds()
        self.profiles = {profile.client: profile for profile in profiles}

    def start(self) -> ServerState:
        """The state before the first round."""
        return ServerState()

    def step(self, state: ServerState, replies: Iterable[Reply]) -> tuple[ServerState, Deliveries, ServerRecord]:
        """One round: learn α and β, then aggregate.

        A reply that cannot be used is left out and named in the record, as if its client had been away: such a client
        keeps its weights and gets no delivery.
        """
        admission = self._admit(state, replies)
        used = admission.used
        state = self._learn(state, used)
        deliveries: Deliveries = {client: {} for client in used}
        aggregations = []
        weights = dict(state.weights)
        for part, aggregator in self.method.aggregators(state.round).items():
            for layout, entries in self._entries(part, used).items():
                for entry in entries:
                    first = aggregator.first_weights(layout)
                    if first and entry.key not in weights:
                        weights[entry.key] = Weights.start(first)
                aggregation, delivered = self._aggregate(aggregator, part, layout, entries, weights)
                aggregations.append(aggregation)
                for entry, delivery in zip(entries, delivered, strict=True):
                    deliveries[entry.client][entry.slot] = delivery
        applied = {key: learned.applied for key, learned in weights.items()}
        record = ServerRecord(state.round, tuple(aggregations), applied, admission.refused)
        return ServerState(state.round + 1, weights, admission.norms), deliveries, record

    def _admit(self, state: ServerState, replies: Iterable[Reply]) -> Admission:
        parts = frozenset(self.method.uploads(state.round))
        expected = Expected(state.round, self.profiles, parts, state.weights)
        return admit(replies, expected, state.norms, self.guard)

    def _learn(self, state: ServerState, replies: Mapping[str, Reply]) -> ServerState:
        """α and β after this round's agreement."""
        weights = dict(state.weights)
        for client, reply in replies.items():
            for slot, agreement in reply.agreement.items():
                key = f"{client}/{slot}"
                weights[key] = self.method.weights.step(weights[key], agreement)
        return replace(state, weights=weights)

    def _entries(self, part: Part, replies: Mapping[str, Reply]) -> dict[Layout, list[_Entry]]:
        """The rows of a part, by layout, each list sorted by name so that the order of clients never shows."""
        found: dict[Layout, list[_Entry]] = {}
        for client, reply in replies.items():
            profile = self.profiles[client]
            for slot in sorted(reply.rows):
                if slot.part == part:
                    entry = _Entry(client, slot, _member(profile, slot), reply.rows[slot])
                    found.setdefault(profile.layouts[slot], []).append(entry)
        return {layout: sorted(entries, key=lambda entry: entry.member.name) for layout, entries in found.items()}

    def _aggregate(
        self,
        aggregator: Aggregator,
        part: Part,
        layout: Layout,
        entries: list[_Entry],
        weights: Mapping[str, Weights],
    ) -> tuple[Aggregation, list[Delivery]]:
        members = [entry.member for entry in entries]
        rows = Rows(members, layout, [entry.row for entry in entries])
        products = rows.products(aggregator.measure)
        mixing = aggregator.mixing(products, members, layout)
        addends: list[list[Addend]] = [[] for _ in entries]
        for blend in mixing.blends:
            mixed = rows.mix(blend.weights)
            for entry, gets, added in zip(entries, blend.gets, addends, strict=True):
                scale = weights[entry.key].applied if blend.hyper else (1.0,)
                added.append(Addend(mixed[gets], scale, remember=blend.hyper and self.method.weights.learn))
        whole = products.sum(dim=0) if aggregator.measure != "nothing" else None
        names = tuple(member.name for member in members)
        record = Aggregation(part, names, aggregator.measure, whole, mixing)
        return record, [Delivery(mixing.base, tuple(added)) for added in addends]


def _member(profile: Profile, slot: Slot) -> Member:
    """Whose row it is: a client's encoder belongs with the same task list, a decoder or head with the same task."""
    tasks = slot.task or "+".join(sorted(profile.tasks))
    name = f"{profile.client}/{slot.task}" if slot.task else profile.client
    return Member(name, f"{profile.dataset}:{tasks}", profile.samples)
