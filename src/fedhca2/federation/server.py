"""The server's part of a round: learn the weights, aggregate, and tell every client what to add."""

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import combinations
from typing import ClassVar

import torch
from torch import Tensor

from fedhca2.aggregation import (
    Aggregator,
    Mean,
    Member,
    Mixing,
    Rows,
    Weights,
    is_shared,
    mix_rows,
    mixing_of,
    renew_rows,
    try_aggregator,
)
from fedhca2.experiment.clients import client_kind
from fedhca2.experiment.settings import LateReplies
from fedhca2.messages import Addend, Delivery, Kind, Profile, Reply
from fedhca2.methods import Method
from fedhca2.params import Layout, Part, Slot
from fedhca2.run_folder.records import Aggregation, ServerRecord, ServerState, SlotKey

log = logging.getLogger("fedhca2.server")
Deliveries = dict[str, dict[Slot, Delivery]]
Sent = Mapping[str, Mapping[Slot, Delivery]]  # what clients took before they trained
Stepped = tuple[ServerState, Deliveries, ServerRecord]  # what a round leads to
# Of rows and of their running statistics, and of a head the digest of its classes: what rows mixed with it have too.
Layouts = tuple[Layout, Layout | None, str]


@dataclass(frozen=True)
class ClientRow:
    """One row of a part, and where it belongs in the federation."""

    client: str
    slot: Slot
    member: Member
    row: Tensor

    @property
    def key(self) -> SlotKey:
        """The key of its learned weights."""
        return SlotKey(self.client, self.slot)


@dataclass(frozen=True)
class Stack:
    """All rows of one part and layout, their inner products, and their running statistics.

    `key` names the server's rows for this part and layout.
    """

    layout: Layout
    aggregator: Aggregator
    entries: list[ClientRow]
    rows: Rows
    products: Tensor
    statistics: "Stack | None" = None
    key: str = ""

    @classmethod
    def of(cls, layout: Layout, aggregator: Aggregator, entries: list[ClientRow], round: int, key: str = "") -> "Stack":
        """Build a stack of these rows, with the inner products that the aggregator needs: one pass over all rows."""
        rows = Rows([entry.member for entry in entries], layout, [entry.row for entry in entries])
        return cls(layout, aggregator, entries, rows, aggregator.products(rows, round), key=key)

    @property
    def part(self) -> Part:
        """The part that its rows are of."""
        return self.entries[0].slot.part

    @property
    def compared(self) -> Tensor:
        """The inner products that the mixing uses."""
        if self.statistics and self.aggregator.compares_models:
            return self.products + self.statistics.products
        return self.products


Mixings = Sequence[tuple[Stack, Mixing]]
Mixed = Sequence[Sequence[Sequence[Tensor | None]]]  # the rows of every blend of every mixing; None: missing


class Server:
    """Turns replies into deliveries. It holds no rows and no models; its state is passed in and out."""

    sees_sketches: ClassVar[bool] = False  # instead of rows

    def __init__(
        self,
        method: Method,
        profiles: Iterable[Profile],
        present: Mapping[str, Profile] | None = None,
        late: LateReplies | None = None,
    ) -> None:
        """:param profiles: all clients that may take part.
        :param present: those that do, by name; may grow. By default all do.
        :param late: how replies to orders of earlier rounds count; by default they do not.
        """
        self.method, self.late = method, late
        everyone = {profile.client: profile for profile in profiles}
        self.profiles = everyone if present is None else present
        self.mixable = mixable_parts(everyone.values())

    def uploads(self, client: str, round: int) -> dict[Part, Kind]:
        """What a client sends after this round: only parts that can be mixed with others' rows."""
        mixable = self.mixable[client]
        return {
            part: kind for part, kind in self.method.uploads(round).items() if part.removesuffix("_norms") in mixable
        }

    @property
    def visible(self) -> Mapping[str, Profile]:
        """The clients' profiles, with the layouts that rows have in replies."""
        return self.profiles

    def weight(self, rounds: int) -> float:
        """How often a reply counts that is this many rounds late."""
        return self.late.weigh(rounds) if self.late else 1.0

    def start(self) -> ServerState:
        """The state before the first round."""
        return ServerState()

    def step(self, state: ServerState, replies: Iterable[Reply], sent: Sent | None = None) -> Stepped:
        """One round: learn α and β, then aggregate. A client without a reply keeps its weights and gets no delivery.

        :param replies: those that the guard has accepted.
        :param sent: what clients took before they trained.
        """
        used = {reply.client: reply for reply in sorted(replies, key=lambda reply: reply.client)}
        weights = dict(state.weights)
        for client, reply in used.items():
            for slot, agreement in reply.agreement.items():
                key = SlotKey(client, slot)
                weights[key] = self.method.weights.step(weights[key], agreement)
        state = replace(state, weights=weights)
        state, mixings = self._choose_mixings(state, used, self._stacks(state.round, used))
        mixed, dropped = self._mix(state.round, mixings, sent or {})
        state, mixed = renew(state, mixings, mixed)
        deliveries = self._deliveries(state, mixings, mixed, [client for client in used if client not in dropped])
        applied = {key: learned.applied for key, learned in state.weights.items()}
        aggregations = tuple(_aggregation(stack, mixing) for stack, mixing in mixings)
        record = ServerRecord(state.round, aggregations, applied, dropped=dropped)
        return replace(state, round=state.round + 1), deliveries, record

    def _stacks(self, round: int, replies: Mapping[str, Reply]) -> list[Stack]:
        """The rows of every part and layout, and the running statistics that clients sent with them."""
        stacks = []
        for part, aggregator in self.method.aggregators(round).items():
            for layouts, entries in group_rows(part, replies, self.profiles).items():
                stack = Stack.of(layouts[0], aggregator, entries, round, stack_key(part, layouts))
                if sent := statistics_of(entries, replies):
                    of_norms = self.profiles[sent[0].client].layouts[sent[0].slot]
                    averaged = aggregator if aggregator.compares_models else Mean()
                    stack = replace(stack, statistics=Stack.of(of_norms, averaged, sent, round))
                stacks.append(stack)
        return stacks

    def _choose_mixings(
        self, state: ServerState, replies: Mapping[str, Reply], stacks: Iterable[Stack]
    ) -> tuple[ServerState, Mixings]:
        """Ask the aggregators how to mix; returns the state with weights for new rows, and what aggregators keep."""
        weights, kept, mixings = dict(state.weights), dict(state.kept), []
        for stack in stacks:
            keys = [entry.key for entry in stack.entries]
            if first := stack.aggregator.first_weights(stack.layout):
                weights |= {key: Weights.start(first) for key in keys if key not in weights}
            members = [replace(entry.member, kept=kept.get(entry.key)) for entry in stack.entries]
            mixing = mixing_of(stack.aggregator, stack.part, stack.compared, members, stack.layout)
            late = [state.round - replies[entry.client].round for entry in stack.entries]
            mixing = mixing.discounted([self.weight(rounds) for rounds in late])
            kept |= dict(zip(keys, mixing.keeps, strict=True)) if mixing.keeps else {}
            mixings.append((stack, mixing))
            if stack.statistics:
                mixings.append((stack.statistics, mixing.of_statistics(len(stack.entries))))
        return replace(state, weights=weights, kept=kept), mixings

    def _mix(self, round: int, mixings: Mixings, sent: Sent) -> tuple[Mixed, Mapping[str, str]]:
        """The rows of every blend of every mixing, and the clients whose rows are in none, with the reason."""
        return [mix_rows(stack.aggregator, stack.part, stack.rows, mixing) for stack, mixing in mixings], {}

    def _deliveries(self, state: ServerState, mixings: Mixings, mixed: Mixed, clients: Iterable[str]) -> Deliveries:
        """What these clients get. A member whose mixture is missing keeps its own row."""
        deliveries: Deliveries = {client: {} for client in clients}
        for (stack, mixing), blends in zip(mixings, mixed, strict=True):
            for number, entry in enumerate(stack.entries):
                addends = []
                for blend, rows in zip(mixing.blends, blends, strict=True):
                    row = rows[blend.gets[number]]
                    scale = state.weights[entry.key].applied if blend.hyper else (blend.scale,)
                    if row is not None:
                        addends.append(Addend(row, scale, remember=blend.hyper and self.method.weights.learn))
                if entry.client in deliveries and len(addends) == len(mixing.blends):
                    deliveries[entry.client][entry.slot] = Delivery(mixing.base, tuple(addends))
        return deliveries


def group_rows(
    part: Part, replies: Mapping[str, Reply], profiles: Mapping[str, Profile]
) -> dict[Layouts, list[ClientRow]]:
    """The rows of a part by layout, each list sorted by name so that the order of clients has no effect."""
    by_layout: dict[Layouts, list[ClientRow]] = {}
    for client, reply in replies.items():
        profile = profiles[client]
        for slot in sorted(slot for slot in reply.rows if slot.part == part):
            member = replace(_member(profile, slot), steps=reply.steps)
            entry = ClientRow(client, slot, member, reply.rows[slot])
            by_layout.setdefault(layouts_of(profile, slot)[1], []).append(entry)
    return {layouts: sorted(entries, key=lambda entry: entry.member.name) for layouts, entries in by_layout.items()}


def stack_key(part: Part, layouts: Layouts) -> str:
    """The key of the server's rows for a part of these layouts."""
    return f"{part}/{blake2b(repr(layouts).encode(), digest_size=8).hexdigest()}"


def statistics_of(entries: Iterable[ClientRow], replies: Mapping[str, Reply]) -> list[ClientRow]:
    """The running statistics that clients sent with these rows."""
    return [
        replace(entry, slot=slot, row=replies[entry.client].rows[slot])
        for entry in entries
        if (slot := entry.slot.statistics) and slot in replies[entry.client].rows
    ]


def renew(state: ServerState, mixings: Mixings, mixed: Mixed) -> tuple[ServerState, Mixed]:
    """Let aggregators that keep rows change what they mixed; where rows are missing, nothing changes.

    :returns: the state with the new rows, and what members get.
    """
    server_rows, renewed = dict(state.rows), list(mixed)
    for number, (stack, _) in enumerate(mixings):
        rows = [row for blend in mixed[number] for row in blend if row is not None]
        if stack.key and stack.aggregator.keeps_rows and len(rows) == sum(map(len, mixed[number])):
            rows, new = renew_rows(stack.aggregator, stack.part, rows, server_rows.get(stack.key, ()))
            left = iter(rows)
            renewed[number] = [[next(left) for _ in blend] for blend in mixed[number]]
            server_rows[stack.key] = tuple(new)
    return replace(state, rows=server_rows), renewed


def check_method(
    method: Method, profiles: Mapping[str, Profile], everyone: Mapping[str, Profile] | None = None
) -> None:
    """Ask a user's own aggregators for mixings of random rows of all clients; raises UserError if one is unusable.

    Warns if nobody gets anything from others, although the method shares something.

    :param everyone: who may take part, if that is more than these clients.
    """
    mixable = mixable_parts((everyone or profiles).values())
    replies = {client: empty_reply(profile, mixable[client]) for client, profile in profiles.items()}
    stacks = [
        (aggregator.at(0.0), part, [entry.member for entry in entries], layout)
        for part, aggregator in method.all_aggregators.items()
        for (layout, *_), entries in group_rows(part, replies, profiles).items()
    ]
    for stack in stacks:
        try_aggregator(*stack)
    if method.head is not None:
        _warn_of_unlike_classes(method.head.at(0.0), profiles.values())
    if method.all_aggregators and not any(is_shared(*stack) for stack in stacks):
        alone = len(profiles) == 1
        why = "there is only one" if alone else "no two have a part that it mixes, with the same layout and group"
        log.warning("method: no client gets anything from others: %s", why)


def empty_reply(profile: Profile, parts: Container[Part]) -> Reply:
    """A reply with an empty row for each that a client has of these parts."""
    return Reply(profile.client, 0, {slot: torch.empty(0) for slot in profile.layouts if slot.part in parts})


def mixable_parts(profiles: Iterable[Profile]) -> dict[str, frozenset[Part]]:
    """The parts of each client that can be mixed: others' rows have the same layout, or there are no others.

    Heads are mixed only with those of the same classes.
    """
    profiles = list(profiles)
    rows = Counter(layouts_of(profile, slot) for profile in profiles for slot in profile.layouts)
    least = min(len(profiles), 2)
    return {
        each.client: frozenset(slot.part for slot in each.layouts if rows[layouts_of(each, slot)] >= least)
        for each in profiles
    }


def _warn_of_unlike_classes(aggregator: Aggregator, profiles: Iterable[Profile]) -> None:
    """Name two heads of each layout that would be mixed if the names of their classes were the same."""
    firsts: dict[Layout, dict[tuple[str, str], Member]] = {}  # by layout, and by classes and group
    for profile in profiles:
        for slot in (slot for slot in profile.layouts if slot.part == "head"):
            layout, _, classes = layouts_of(profile, slot)[1]
            member = _member(profile, slot)
            firsts.setdefault(layout, {}).setdefault((classes, member.group), member)
    for layout, members in firsts.items():
        for ((classes, _), one), ((others, _), other) in combinations(members.items(), 2):
            if classes != others and is_shared(aggregator, "head", [one, other], layout):
                why = "their classes have different names"
                log.warning("method.head: heads of %s and %s are not mixed: %s", one.name, other.name, why)
                break


def layouts_of(profile: Profile, slot: Slot) -> tuple[Part, Layouts]:
    """The part and layouts of a row: those that rows mixed with it have too."""
    statistics = profile.layouts.get(slot.statistics) if slot.statistics else None
    classes = profile.classes.get(slot.task, "") if slot.part == "head" else ""
    return slot.part, (profile.layouts[slot], statistics, classes)


def _aggregation(stack: Stack, mixing: Mixing) -> Aggregation:
    measure = stack.aggregator.measure
    whole = stack.compared.sum(dim=0) if measure != "nothing" else None
    return Aggregation(stack.part, tuple(entry.member.name for entry in stack.entries), measure, whole, mixing)


def _member(profile: Profile, slot: Slot) -> Member:
    """The owner of a row: encoders are grouped by task list, decoders and heads by task."""
    kind = client_kind(profile.dataset, (slot.task,) if slot.task else profile.tasks)
    name = f"{profile.client}/{slot.task}" if slot.task else profile.client
    return Member(name, kind, profile.samples)
