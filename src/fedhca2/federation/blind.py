"""A server that gets sums of rows, and sketches to compare them, but never a row."""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from fedhca2.aggregation import Member, Mixing, Rows
from fedhca2.experiment import Experiment
from fedhca2.federation.gate import Expected
from fedhca2.federation.limits import NO_LIMIT, Reach
from fedhca2.federation.moves import Move
from fedhca2.federation.server import Mixed, Server
from fedhca2.federation.stacks import Entry, Stack
from fedhca2.messages import Delivery, Profile, Reply
from fedhca2.params import Layout, Part, Slot
from fedhca2.run_folder.records import ServerState
from fedhca2.seeds import derive


@dataclass(frozen=True)
class Sum:
    """A weighted sum of rows: non-negative weights by client and slot."""

    weights: Mapping[str, Mapping[Slot, float]]
    numel: int

    def total(self, clients: Iterable[str]) -> float:
        """The total weight of some clients."""
        return sum(sum(self.weights.get(client, {}).values()) for client in clients)


@dataclass(frozen=True)
class Summed:
    """Sums without the clients that dropped out; None if too few are left, or if the sum would be a single row."""

    rows: Sequence[Tensor | None]
    dropped: Mapping[str, str] = field(default_factory=dict)


class Adder(Protocol):
    """Clients that add up the rows of their last replies without revealing one."""

    def add(self, round: int, sums: Sequence[Sum]) -> Summed:
        """Compute these sums; `dropped` names the clients whose rows are in none of them."""


def seen_of(profile: Profile, experiment: Experiment) -> Profile:
    """The profile as the server sees it: with secure aggregation, only the layouts of sketches."""
    secure = experiment.secure_aggregation
    if secure is None:
        return profile
    sketch, parts = Layout(("sketch",), ((secure.sketch,),)), secure.sketched(experiment.resolved_method)
    return replace(profile, layouts={slot: sketch for slot in profile.layouts if slot.part in parts})


@dataclass(frozen=True)
class Sketcher:
    """Sketches of rows by a random projection that is the same for all clients and new in every round."""

    size: int
    seed: int

    def sketch(self, row: Tensor, slot: Slot, round: int) -> Tensor:
        """A row's sketch, [size]."""
        rows = Rows([Member("", "")], Layout(("row",), ((len(row),),)), [row])
        return rows.sketches(self.size, derive(self.seed, "sketch", round, str(slot)))[0][0].cpu()


class BlindServer(Server):
    """Mixes by sums. It compares sketches, and its guard sees nothing else."""

    def __init__(
        self,
        experiment: Experiment,
        profiles: Iterable[Profile],
        adder: Adder,
        present: Mapping[str, Profile] | None = None,
    ) -> None:
        method, reach = experiment.resolved_method, Reach.of(experiment)
        super().__init__(method, profiles, experiment.guard, reach, present, experiment.task_set)
        self.experiment, self.adder = experiment, adder

    def _expected(self, state: ServerState) -> Expected:
        expected = super()._expected(state)
        seen = {client: seen_of(profile, self.experiment) for client, profile in self.profiles.items()}
        return replace(expected, profiles=seen)

    def _measure(self, round: int, replies: Mapping[str, Reply]) -> list[Stack]:
        stacks = []
        for part, aggregator in self.method.aggregators(round).items():
            for (layout, *_), entries in self._entries(part, replies).items():
                size = len(entries[0].row)
                rows = Rows(
                    [entry.member for entry in entries], Layout(("sketch",), ((size,),)), [e.row for e in entries]
                )
                stacks.append(Stack(part, layout, aggregator, entries, rows, aggregator.products(rows, round)))
        return stacks

    def _rows_of(self, part: Part, reply: Reply) -> Mapping[Slot, Tensor]:
        """For every row that a client keeps, its sketch, or an empty row if it has none."""
        shared = part in self.mixable[reply.client]
        slots = (slot for slot in self.profiles[reply.client].layouts if shared and slot.part == part)
        return {slot: reply.rows.get(slot, torch.empty(0)) for slot in slots}

    def _moves(
        self, round: int, stacks: Iterable[Stack], sent: Mapping[str, Mapping[Slot, Delivery]]
    ) -> dict[str, dict[Slot, Move]]:
        """Measure the moves that sketches show: the lengths of updates, NaN if one is not finite."""
        moves_by_client: dict[str, dict[Slot, Move]] = {client: {} for client in self.profiles}
        for stack in (stack for stack in stacks if stack.aggregator.measure != "nothing"):
            updates = stack.aggregator.sends == "updates"
            for entry, length in zip(stack.entries, stack.rows.norms().tolist(), strict=True):
                limit = self._limit(entry, range(round, round + 1)) if updates else NO_LIMIT
                moves_by_client[entry.client][entry.slot] = Move(length, limit, updates)
        return moves_by_client

    def _mix(
        self,
        round: int,
        mixings: Sequence[tuple[Stack, Mixing]],
        sent: Mapping[str, Mapping[Slot, Delivery]],
    ) -> Mixed:
        """Let the clients compute sums; a sum for one client alone stays with that client."""
        wanted = [
            [[_part(stack, weights) for weights in blend.weights.tolist()] for blend in mixing.blends]
            for stack, mixing in mixings
        ]
        parts = [part for blends in wanted for rows in blends for part in rows if len(part.sum.weights) > 1]
        summed = self.adder.add(round, [part.sum for part in parts]) if parts else Summed(())
        dropped = dict(summed.dropped)
        made: dict[int, Tensor] = {}
        for part, row in zip(parts, summed.rows, strict=True):
            fault = self._fault(round, part, row, sent, summed.dropped) if row is not None else ""
            dropped |= dict.fromkeys(part.sum.weights, fault) if fault else {}
            if row is not None and not fault:
                made[id(part)] = row
        return Mixed([[[made.get(id(part)) for part in rows] for rows in blends] for blends in wanted], dropped)

    def _fault(
        self,
        round: int,
        part: "_Part",
        row: Tensor,
        sent: Mapping[str, Mapping[Slot, Delivery]],
        dropped: Container[str],
    ) -> str:
        """Why a sum is farther from the start of its rows than all of them together can move; empty if it is not."""
        stayed = [(entry, weight) for entry, weight in part.entries if entry.client not in dropped]
        starts = [self._start(entry, sent) for entry, _ in stayed]
        updates = part.stack.aggregator.sends == "updates"
        if not self.guard.reach or not (updates or all(start is not None for start in starts)):
            return ""
        scale = sum(weight for _, weight in part.entries) / sum(weight for _, weight in stayed)
        moved, limit = row.double(), 0.0
        for (entry, weight), start in zip(stayed, starts, strict=True):
            limit += weight * scale * self._limit(entry, range(round, round + 1)).within(self.guard.reach)
            if start is not None and not updates:
                moved = moved - weight * scale * start.double()
        rounding = 2 * torch.finfo(torch.float32).eps * (float(row.double().norm()) + len(row) ** 0.5)
        distance = float(moved.norm())
        if distance <= limit + rounding:
            return ""
        far = f"at most {limit:.4g}, the most its rows can move (guard.reach)"
        return (
            f"{part.stack.part}: the sum should have moved by {far}, found {distance:.4g}: a client sent an invalid row"
        )


@dataclass(frozen=True)
class _Part:
    """A sum and the rows in it."""

    stack: Stack
    entries: Sequence[tuple[Entry, float]]
    sum: Sum


def _part(stack: Stack, weights: Sequence[float]) -> _Part:
    entries = [(entry, weight) for entry, weight in zip(stack.entries, weights, strict=True) if weight]
    by_client: dict[str, dict[Slot, float]] = {}
    for entry, weight in entries:
        by_client.setdefault(entry.client, {})[entry.slot] = weight
    return _Part(stack, entries, Sum(by_client, stack.layout.numel))
