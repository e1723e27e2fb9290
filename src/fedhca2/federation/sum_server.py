"""A server that gets sums of rows, and sketches to compare them, but never a row."""

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch import Tensor

from fedhca2.aggregation import Rows
from fedhca2.experiment import Experiment
from fedhca2.federation.guard import MoveLimits, Reach, start_of_training
from fedhca2.federation.server import ClientRow, Mixed, Mixings, Sent, Server, Stack, empty_reply, group_rows, stack_key
from fedhca2.messages import Profile, Reply
from fedhca2.params import Layout, Slot
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
    dropped: Mapping[str, str] = field(default_factory=dict)  # whose rows are in none of them, and why


# Lets clients add up the rows of their last replies in a round without revealing one.
SecureSummer = Callable[[int, Sequence[Sum]], Summed]


def visible_profile(profile: Profile, experiment: Experiment) -> Profile:
    """The profile as the server sees it: with secure aggregation, only the layouts of sketches."""
    secure = experiment.secure_aggregation
    if secure is None:
        return profile
    sketch, parts = Layout(("sketch",), ((secure.sketch,),)), secure.sketched(experiment.resolved_method)
    return replace(profile, layouts={slot: sketch for slot in profile.layouts if slot.part in parts})


def sketch_row(row: Tensor, size: int, seed: int, slot: Slot, round: int) -> Tensor:
    """A row's sketch, [size]: a random projection that is the same for all clients and new in every round."""
    return Rows.unnamed([row]).sketches(size, derive(seed, "sketch", round, str(slot)))[0][0].cpu()


class SumOnlyServer(Server):
    """Mixes by sums. It compares sketches, and never sees a row."""

    sees_sketches: ClassVar[bool] = True

    def __init__(
        self,
        experiment: Experiment,
        profiles: Iterable[Profile],
        summer: SecureSummer,
        present: Mapping[str, Profile] | None = None,
    ) -> None:
        """:param summer: asks the clients, which compute the sums."""
        super().__init__(experiment.resolved_method, profiles, present)
        self.experiment, self.summer = experiment, summer

    @property
    def visible(self) -> Mapping[str, Profile]:
        """The clients' profiles, with the layouts of sketches."""
        return {client: visible_profile(profile, self.experiment) for client, profile in self.profiles.items()}

    def _stacks(self, round: int, replies: Mapping[str, Reply]) -> list[Stack]:
        """Sketches of the rows of every part and layout; parts whose rows are not compared have empty ones."""
        filled = {}
        for client, reply in replies.items():
            rows = empty_reply(self.profiles[client], self.mixable[client]).rows
            filled[client] = replace(reply, rows={**rows, **reply.rows})
        stacks = []
        for part, aggregator in self.method.aggregators(round).items():
            for layouts, entries in group_rows(part, filled, self.profiles).items():
                sketch = Stack.of(Layout(("sketch",), ((len(entries[0].row),),)), aggregator, entries, round)
                stacks.append(replace(sketch, layout=layouts[0], key=stack_key(part, layouts)))
        return stacks

    def _mix(self, round: int, mixings: Mixings, sent: Sent) -> tuple[Mixed, Mapping[str, str]]:
        """Let clients compute the sums for every blend of every mixing; a sum of one row stays with its client."""
        parts_by_mixing = [
            [[_part(stack, weights) for weights in blend.weights.tolist()] for blend in mixing.sums]
            for stack, mixing in mixings
        ]
        parts = [part for blends in parts_by_mixing for rows in blends for part in rows if len(part.sum.weights) > 1]
        summed = self.summer(round, [part.sum for part in parts]) if parts else Summed(())
        dropped = dict(summed.dropped)
        rows_by_part: dict[int, Tensor] = {}
        for part, row in zip(parts, summed.rows, strict=True):
            fault = self._find_excess(round, part, row, sent, summed.dropped) if row is not None else None
            dropped |= dict.fromkeys(part.sum.weights, fault) if fault else {}
            if row is not None and not fault:
                rows_by_part[id(part)] = row
        mixed = [[[rows_by_part.get(id(part)) for part in rows] for rows in blends] for blends in parts_by_mixing]
        return mixed, dropped

    def _find_excess(self, round: int, part: "_Part", row: Tensor, sent: Sent, dropped: Container[str]) -> str | None:
        """Why a sum is farther from the start of its rows than all of them together can move; None if it is not."""
        stayed = [(entry, weight) for entry, weight in part.entries if entry.client not in dropped]
        starts = [start_of_training(self, entry, sent) for entry, _ in stayed]
        updates, reach = part.stack.aggregator.sends == "updates", self.experiment.guard.reach
        if not reach or not (updates or all(start is not None for start in starts)):
            return None
        limits = MoveLimits(self.profiles, Reach.of(self.experiment))
        scale = sum(weight for _, weight in part.entries) / sum(weight for _, weight in stayed)
        moved, limit = row.double(), 0.0
        for (entry, weight), start in zip(stayed, starts, strict=True):
            limit += weight * scale * limits.of(entry.client, entry.slot, range(round, round + 1)).within(reach)
            if start is not None and not updates:
                moved = moved - weight * scale * start.double()
        rounding = 2 * torch.finfo(torch.float32).eps * (float(row.double().norm()) + len(row) ** 0.5)
        distance = float(moved.norm())
        if distance <= limit + rounding:
            return None
        far = f"at most {limit:.4g}, the most its rows can move (guard.reach)"
        got = f"{distance:.4g}: a client sent an invalid row"
        return f"{part.stack.part}: expected a sum that moved by {far}, got {got}"


@dataclass(frozen=True)
class _Part:
    """A sum and the rows in it."""

    stack: Stack
    entries: Sequence[tuple[ClientRow, float]]
    sum: Sum


def _part(stack: Stack, weights: Sequence[float]) -> _Part:
    entries = [(entry, weight) for entry, weight in zip(stack.entries, weights, strict=True) if weight]
    by_client: dict[str, dict[Slot, float]] = {}
    for entry, weight in entries:
        by_client.setdefault(entry.client, {})[entry.slot] = weight
    return _Part(stack, entries, Sum(by_client, stack.layout.numel))
