"""The server's part of a round: learn the weights, aggregate, and tell every client what to add."""

import logging
from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from statistics import median_low

from torch import Tensor

from fedhca2.aggregation import Mean, Member, Mixing, Weights, is_shared, mixing_of, try_aggregator
from fedhca2.experiment.clients import client_kind
from fedhca2.experiment.reliability import GuardBounds
from fedhca2.federation.gate import Expected, sent_updates, well_formed
from fedhca2.federation.limits import NO_LIMIT, Limit, RowReach
from fedhca2.federation.moves import Move, Trained, admit, moves_of_parameters, moves_of_statistics, moves_of_updates
from fedhca2.federation.stacks import Entry, Stack
from fedhca2.messages import Addend, Delivery, Kind, Profile, Reply
from fedhca2.methods import Method
from fedhca2.params import Layout, Part, Slot
from fedhca2.run_folder.records import Aggregation, ServerRecord, ServerState
from fedhca2.tasks import TASKS, TaskSet

log = logging.getLogger("fedhca2.server")
Deliveries = dict[str, dict[Slot, Delivery]]
# Of rows and of their running statistics, and of a head the digest of its classes: what rows mixed with it have too.
Layouts = tuple[Layout, Layout | None, str]


@dataclass(frozen=True)
class Mixed:
    """The mixed rows of every blend, if there are any, and the clients whose rows are in none, with the reason."""

    rows: Sequence[Sequence[Sequence[Tensor | None]]]
    dropped: Mapping[str, str] = field(default_factory=dict)


class Server:
    """Turns replies into deliveries. It holds no rows and no models; its state is passed in and out."""

    def __init__(
        self,
        method: Method,
        profiles: Iterable[Profile],
        guard: GuardBounds | None = None,
        reach: RowReach | None = None,
        present: Mapping[str, Profile] | None = None,
        tasks: TaskSet = TASKS,
    ) -> None:
        """`reach` says how far rows can move in a round; without it, moves are not limited.

        `present` holds the clients that take part, by name, and may grow; by default all do.
        """
        self.method, self.tasks = method, tasks
        self.guard = guard or GuardBounds()
        self.reach = reach
        everyone = {profile.client: profile for profile in profiles}
        self.profiles = everyone if present is None else present
        self.mixable = mixable_parts(everyone.values())

    def uploads(self, client: str, round: int) -> dict[Part, Kind]:
        """What a client sends after this round: only parts that can be mixed with others' rows."""
        mixable = self.mixable[client]
        return {
            part: kind for part, kind in self.method.uploads(round).items() if part.removesuffix("_norms") in mixable
        }

    def start(self) -> ServerState:
        """The state before the first round."""
        return ServerState()

    def step(
        self,
        state: ServerState,
        replies: Iterable[Reply],
        sent: Mapping[str, Mapping[Slot, Delivery]] | None = None,
    ) -> tuple[ServerState, Deliveries, ServerRecord]:
        """One round: learn α and β, then aggregate. `sent` is what clients took before they trained.

        A reply that cannot be used is left out and named in the record, and its client counts as absent: it keeps its
        weights and gets no delivery.
        """
        replies = list(replies)
        expected = self._expected(state)
        sound, refused = well_formed(replies, expected)
        stacks = self._measure(state.round, sound)
        admission = admit(sound, self._moves(state.round, stacks, sent or {}), state.shares, self.guard)
        if admission.refused:  # rare: measured again, so that a refused row leaves no trace in the others' products
            stacks = self._measure(state.round, admission.used)
        state = self._learn(state, admission.used)
        mixings = []
        weights, kept = dict(state.weights), dict(state.kept)
        for stack in stacks:
            first = stack.aggregator.first_weights(stack.layout)
            for entry in stack.entries:
                if first and entry.key not in weights:
                    weights[entry.key] = Weights.start(first)
            members = [replace(entry.member, kept=kept.get(entry.key)) for entry in stack.entries]
            mixing = mixing_of(stack.aggregator, stack.part, stack.compared, members, stack.layout)
            if mixing.keeps:
                kept |= dict(zip([entry.key for entry in stack.entries], mixing.keeps, strict=True))
            mixings.append((stack, mixing))
            if stack.statistics:
                mixings.append((stack.statistics, mixing.of_statistics(len(stack.entries))))
        mixed = self._mix(state.round, mixings, sent or {})
        deliveries: Deliveries = {client: {} for client in admission.used if client not in mixed.dropped}
        for (stack, mixing), rows in zip(mixings, mixed.rows, strict=True):
            self._deliver(stack, mixing, rows, weights, deliveries)
        applied = {key: learned.applied for key, learned in weights.items()}
        aggregations = tuple(_aggregation(stack, mixing) for stack, mixing in mixings)
        refused |= admission.refused
        unused = tuple(name for name in sent_updates(replies, expected) if name in refused)
        record = ServerRecord(state.round, aggregations, applied, refused, mixed.dropped, unused)
        return ServerState(state.round + 1, weights, admission.shares, kept), deliveries, record

    def _expected(self, state: ServerState) -> Expected:
        """What replies should look like in this round."""
        parts = {client: self.uploads(client, state.round) for client in self.profiles}
        return Expected(state.round, self.profiles, parts, state.weights, tasks=self.tasks)

    def _measure(self, round: int, replies: Mapping[str, Reply]) -> list[Stack]:
        """Measure the rows of every part and layout."""
        stacks = []
        for part, aggregator in self.method.aggregators(round).items():
            for (layout, *_), entries in self._entries(part, replies).items():
                stack = Stack.of(layout, aggregator, entries, round)
                stacks.append(replace(stack, statistics=self._statistics(stack, replies, round)))
        return stacks

    def _statistics(self, stack: Stack, replies: Mapping[str, Reply], round: int) -> Stack | None:
        """The running statistics that clients sent with the rows of a stack."""
        entries = [
            replace(entry, slot=slot, row=replies[entry.client].rows[slot])
            for entry in stack.entries
            if (slot := entry.slot.statistics) and slot in replies[entry.client].rows
        ]
        if not entries:
            return None
        aggregator = stack.aggregator if stack.aggregator.compares_models else Mean()
        layout = self.profiles[entries[0].client].layouts[entries[0].slot]
        return Stack.of(layout, aggregator, entries, round)

    def _moves(
        self, round: int, stacks: Iterable[Stack], sent: Mapping[str, Mapping[Slot, Delivery]]
    ) -> dict[str, dict[Slot, Move]]:
        """Measure how far every row of every client moved."""
        moves_by_client: dict[str, dict[Slot, Move]] = {client: {} for client in self.profiles}
        for stack in stacks:
            measured = [(stack, self._trained_moves(round, stack, sent))]
            if stack.statistics:
                measured.append((stack.statistics, self._statistics_moves(stack.statistics)))
            for each, moves in measured:
                for entry, move in zip(each.entries, moves, strict=True):
                    moves_by_client[entry.client][entry.slot] = move
        return moves_by_client

    def _trained_moves(self, round: int, stack: Stack, sent: Mapping[str, Mapping[Slot, Delivery]]) -> list[Move]:
        now, ever = range(round, round + 1), range(round + 1)
        trained = [
            Trained(entry.row, self._start(entry, sent), self._limit(entry, now), self._limit(entry, ever))
            for entry in stack.entries
        ]
        if self.method.uploads(round)[stack.part] == "updates":
            return moves_of_updates(stack.lengths(), trained)
        return moves_of_parameters(stack.part, stack.rows, trained)

    def _statistics_moves(self, stack: Stack) -> list[Move]:
        if self.reach is None:
            return [Move(length, NO_LIMIT, False) for length in stack.lengths()]
        return moves_of_statistics(stack.lengths())

    def _start(self, entry: Entry, sent: Mapping[str, Mapping[Slot, Delivery]]) -> Tensor | None:
        """The start of a client's training, if the server knows it: it only holds rows that it sent."""
        delivery = sent.get(entry.client, {}).get(entry.slot)
        return delivery.row if delivery and self.method.local.replaces else None

    def _limit(self, entry: Entry, rounds: range) -> Limit:
        """The farthest that a row can have moved."""
        if self.reach is None:
            return NO_LIMIT
        profile = self.profiles[entry.client]
        return self.reach.of_row(profile, profile.layouts[entry.slot].numel, rounds, entry.median)

    def _learn(self, state: ServerState, replies: Mapping[str, Reply]) -> ServerState:
        """Update α and β with this round's agreement."""
        weights = dict(state.weights)
        for client, reply in replies.items():
            for slot, agreement in reply.agreement.items():
                key = f"{client}/{slot}"
                weights[key] = self.method.weights.step(weights[key], agreement)
        return replace(state, weights=weights)

    def _entries(self, part: Part, replies: Mapping[str, Reply]) -> dict[Layouts, list[Entry]]:
        """The rows of a part by layout, each list sorted by name so that the order of clients has no effect."""
        by_layout: dict[Layouts, list[Entry]] = {}
        median = median_low([profile.samples for profile in self.profiles.values()] or [0])
        for client, reply in replies.items():
            profile = self.profiles[client]
            for slot, row in sorted(self._rows_of(part, reply).items()):
                entry = Entry(client, slot, _member(profile, slot), row, median)
                by_layout.setdefault(_layouts(profile, slot)[1], []).append(entry)
        return {layouts: sorted(entries, key=lambda entry: entry.member.name) for layouts, entries in by_layout.items()}

    def _rows_of(self, part: Part, reply: Reply) -> Mapping[Slot, Tensor]:
        """The rows of a part that a client sent."""
        return {slot: row for slot, row in reply.rows.items() if slot.part == part}

    def _mix(
        self,
        round: int,
        mixings: Sequence[tuple[Stack, Mixing]],
        sent: Mapping[str, Mapping[Slot, Delivery]],
    ) -> Mixed:
        """Mix all rows in a second pass."""
        return Mixed([[stack.rows.mix(blend.weights) for blend in mixing.blends] for stack, mixing in mixings])

    def _deliver(
        self,
        stack: Stack,
        mixing: Mixing,
        mixed: Sequence[Sequence[Tensor | None]],
        weights: Mapping[str, Weights],
        deliveries: Deliveries,
    ) -> None:
        """Add every member's mixture to `deliveries`; a member whose mixture is missing keeps its own row."""
        for number, entry in enumerate(stack.entries):
            addends = []
            for blend, rows in zip(mixing.blends, mixed, strict=True):
                row = rows[blend.gets[number]]
                scale = weights[entry.key].applied if blend.hyper else (1.0,)
                if row is not None:
                    addends.append(Addend(row, scale, remember=blend.hyper and self.method.weights.learn))
            if entry.client in deliveries and len(addends) == len(mixing.blends):
                deliveries[entry.client][entry.slot] = Delivery(mixing.base, tuple(addends))


def check_method(
    method: Method, profiles: Mapping[str, Profile], everyone: Mapping[str, Profile] | None = None
) -> None:
    """Ask a user's own aggregators for mixings of random rows of all clients; raises UserError if one is unusable.

    Warns if nobody gets anything from others, although the method shares something.

    :param everyone: who may take part, if that is more than these clients.
    """
    mixable = mixable_parts((everyone or profiles).values())
    stacks = [
        (aggregator.at(0.0), part, members, layout)
        for part, aggregator in method.all_aggregators.items()
        for layout, members in _members(part, profiles, mixable)
    ]
    for stack in stacks:
        try_aggregator(*stack)
    for line in unlike_classes(method, profiles.values()):
        log.warning("%s", line)
    if method.all_aggregators and not any(is_shared(*stack) for stack in stacks):
        alone = len(profiles) == 1
        why = "there is only one" if alone else "no two have a part that it mixes, with the same layout and group"
        log.warning("method: no client gets anything from others: %s", why)


def _members(
    part: Part, profiles: Mapping[str, Profile], mixable: Mapping[str, Container[Part]]
) -> list[tuple[Layout, list[Member]]]:
    """The owners of rows of a part, by layout, in the order of a round in which all take part."""
    groups: dict[Layouts, list[Member]] = {}
    for profile in profiles.values():
        for slot in profile.layouts if part in mixable[profile.client] else ():
            if slot.part == part:
                groups.setdefault(_layouts(profile, slot)[1], []).append(_member(profile, slot))
    return [(layout, sorted(members, key=lambda member: member.name)) for (layout, *_), members in groups.items()]


def mixable_parts(profiles: Iterable[Profile]) -> dict[str, frozenset[Part]]:
    """The parts of each client that can be mixed: others' rows have the same layout, or there are no others.

    Heads are mixed only with those of the same classes.
    """
    profiles = list(profiles)
    rows = Counter(_layouts(profile, slot) for profile in profiles for slot in profile.layouts)
    least = min(len(profiles), 2)
    return {
        each.client: frozenset(slot.part for slot in each.layouts if rows[_layouts(each, slot)] >= least)
        for each in profiles
    }


def unlike_classes(method: Method, profiles: Iterable[Profile]) -> list[str]:
    """Name two heads of each layout that a method would mix if the names of their classes were the same."""
    if method.head is None:
        return []
    firsts: dict[Layout, dict[tuple[str, str], Member]] = {}  # by layout, and by classes and group
    for profile in profiles:
        for slot in (slot for slot in profile.layouts if slot.part == "head"):
            layout, _, classes = _layouts(profile, slot)[1]
            member = _member(profile, slot)
            firsts.setdefault(layout, {}).setdefault((classes, member.group), member)
    lines = []
    for layout, members in firsts.items():
        for ((classes, _), one), ((others, _), other) in combinations(members.items(), 2):
            if classes != others and is_shared(method.head.at(0.0), "head", [one, other], layout):
                names = f"{one.name} and {other.name}"
                lines.append(f"method.head: heads of {names} are not mixed: their classes have different names")
                break
    return lines


def _layouts(profile: Profile, slot: Slot) -> tuple[Part, Layouts]:
    """The part and layouts of a row: those that rows mixed with it have too."""
    beside = profile.layouts.get(slot.statistics) if slot.statistics else None
    classes = profile.classes.get(slot.task, "") if slot.part == "head" else ""
    return slot.part, (profile.layouts[slot], beside, classes)


def _aggregation(stack: Stack, mixing: Mixing) -> Aggregation:
    measure = stack.aggregator.measure
    whole = stack.compared.sum(dim=0) if measure != "nothing" else None
    return Aggregation(stack.part, tuple(entry.member.name for entry in stack.entries), measure, whole, mixing)


def _member(profile: Profile, slot: Slot) -> Member:
    """The owner of a row: encoders are grouped by task list, decoders and heads by task."""
    kind = client_kind(profile.dataset, (slot.task,) if slot.task else profile.tasks)
    name = f"{profile.client}/{slot.task}" if slot.task else profile.client
    return Member(name, kind, profile.samples)
