"""The server's part of a round: learn the weights, aggregate, and say what every client adds."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from fedhca2.aggregation import Aggregator, Measure, Member, Mixing, Rows, Weights
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.gate import Expected, well_formed
from fedhca2.federation.guard import admit
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


@dataclass(frozen=True)
class _Stack:
    """All rows of one part and layout, and their inner products."""

    part: Part
    layout: Layout
    aggregator: Aggregator
    entries: list[_Entry]
    rows: Rows
    products: Tensor

    def norms(self) -> list[float]:
        """Lengths of the rows, which their own inner products tell; a row that is not finite has none."""
        if self.aggregator.measure == "rows":
            return self.products.sum(dim=0).diagonal().clamp(min=0).sqrt().tolist()
        return self.rows.norms().tolist()


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
        parts = frozenset(self.method.uploads(state.round))
        sound, refused = well_formed(replies, Expected(state.round, self.profiles, parts, state.weights))
        stacks = self._measure(state.round, sound)
        admission = admit(sound, _norms(sound, stacks), state.norms, self.guard)
        if admission.refused:  # rare: measured again, so that nothing of a refused row is left in the others' products
            stacks = self._measure(state.round, admission.used)
        state = self._learn(state, admission.used)
        deliveries: Deliveries = {client: {} for client in admission.used}
        aggregations = []
        weights = dict(state.weights)
        for stack in stacks:
            first = stack.aggregator.first_weights(stack.layout)
            for entry in stack.entries:
                if first and entry.key not in weights:
                    weights[entry.key] = Weights.start(first)
            aggregation, delivered = self._aggregate(stack, weights)
            aggregations.append(aggregation)
            for entry, delivery in zip(stack.entries, delivered, strict=True):
                deliveries[entry.client][entry.slot] = delivery
        applied = {key: learned.applied for key, learned in weights.items()}
        record = ServerRecord(state.round, tuple(aggregations), applied, refused | admission.refused)
        return ServerState(state.round + 1, weights, admission.norms), deliveries, record

    def _measure(self, round: int, replies: Mapping[str, Reply]) -> list[_Stack]:
        """The rows of every part and layout with the inner products that its aggregator needs: one pass over all."""
        stacks = []
        for part, aggregator in self.method.aggregators(round).items():
            for layout, entries in self._entries(part, replies).items():
                rows = Rows([entry.member for entry in entries], layout, [entry.row for entry in entries])
                products = rows.products(aggregator.measure, aggregator.whole)
                stacks.append(_Stack(part, layout, aggregator, entries, rows, products))
        return stacks

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

    def _aggregate(self, stack: _Stack, weights: Mapping[str, Weights]) -> tuple[Aggregation, list[Delivery]]:
        """The second pass over all rows."""
        members, measure = stack.rows.members, stack.aggregator.measure
        mixing = stack.aggregator.mixing(stack.products, members, stack.layout)
        addends: list[list[Addend]] = [[] for _ in members]
        for blend in mixing.blends:
            mixed = stack.rows.mix(blend.weights)
            for entry, gets, added in zip(stack.entries, blend.gets, addends, strict=True):
                scale = weights[entry.key].applied if blend.hyper else (1.0,)
                added.append(Addend(mixed[gets], scale, remember=blend.hyper and self.method.weights.learn))
        whole = stack.products.sum(dim=0) if measure != "nothing" else None
        record = Aggregation(stack.part, tuple(member.name for member in members), measure, whole, mixing)
        return record, [Delivery(mixing.base, tuple(added)) for added in addends]


def _norms(replies: Mapping[str, Reply], stacks: Iterable[_Stack]) -> dict[str, dict[Slot, float]]:
    """The norm of each row of each client."""
    found = {
        (entry.client, entry.slot): norm
        for stack in stacks
        for entry, norm in zip(stack.entries, stack.norms(), strict=True)
    }
    return {client: {slot: found[client, slot] for slot in sorted(reply.rows)} for client, reply in replies.items()}


def _member(profile: Profile, slot: Slot) -> Member:
    """Whose row it is: a client's encoder belongs with the same task list, a decoder or head with the same task."""
    tasks = slot.task or "+".join(sorted(profile.tasks))
    name = f"{profile.client}/{slot.task}" if slot.task else profile.client
    return Member(name, f"{profile.dataset}:{tasks}", profile.samples)
