"""How far a client's rows moved in a round, and how far training can move them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import inf, isfinite
from statistics import median, median_low
from typing import Protocol

import torch
from torch import Tensor

from fedhca2.aggregation import Rows
from fedhca2.clients import Privacy, Training
from fedhca2.clients.exchange import ALIKE, noise_reach, trained_reach
from fedhca2.experiment import Experiment
from fedhca2.messages import Profile
from fedhca2.params import Part, Slot


@dataclass(frozen=True)
class Limit:
    """The farthest that a row can move: by its steps, within its clip, plus an allowance for what is not training.

    A guard may allow only a share of the steps' part. The parts for clip, noise and rounding are not scaled.

    >>> Limit(steps=20.0, clip=5.0, allowance=1.0).within(0.1)
    3.0
    """

    steps: float
    clip: float = inf
    allowance: float = 0.0

    def within(self, share: float) -> float:
        """The farthest move with this share of the steps' part."""
        return min(share * self.steps, self.clip) + self.allowance

    def __add__(self, other: "Limit") -> "Limit":
        return Limit(self.steps + other.steps, self.clip + other.clip, self.allowance + other.allowance)


NO_LIMIT = Limit(inf)


class RowReach(Protocol):
    """How far local training can move rows."""

    def of_row(self, profile: Profile, part: Part, numel: int, rounds: range, median: int) -> Limit:
        """The farthest that a part's row of `numel` values can move in these rounds.

        The number of images in a profile is what its client says; `median` is that of all clients.
        """


@dataclass(frozen=True)
class Reach:
    """How far local training can move rows, given the steps, learning rates and noise that an experiment declares."""

    training: Training
    privacy: Privacy
    rounds: int
    epochs: Mapping[str, int]
    own_noise: float = 0.0  # standard deviation of the noise that sites may add to each value on their own
    round_steps: Mapping[str, int] = field(default_factory=dict)  # in a round, of clients whose rounds are not epochs
    images: Mapping[str, int] = field(default_factory=dict)  # the most that clients have, as far as this is declared

    @classmethod
    def of(cls, experiment: Experiment) -> "Reach":
        """The reach of an experiment's clients."""
        guard = experiment.guard
        epochs = {spec.name: spec.epochs for spec in experiment.specs if spec.epochs}
        steps = {spec.name: spec.steps for spec in experiment.specs if spec.steps}
        return cls(experiment.training, experiment.privacy, experiment.rounds, epochs, guard.noise, steps, guard.images)

    def steps(self, profile: Profile, median: int) -> int:
        """Steps of an epoch that a client is believed to take: as many as its images, within what is declared.

        If nothing is declared for it, within twice the lower median of what all clients say, which no client can raise
        by itself. Honest steps move a row by at most an eighth of what any gradients could do, so that whoever has up
        to fifteen times the median's images passes with this, and a lie gains no more than a factor of two
        (docs/security.md).
        """
        most = self.images.get(profile.client, 2 * median)
        return min(profile.samples, most) // self.training.batch_size

    def of_row(self, profile: Profile, part: Part, numel: int, rounds: range, median: int) -> Limit:
        """The farthest that a part's row of `numel` values can move in these rounds, by the steps that are believed."""
        batches = self.steps(profile, median)
        steps = self.round_steps.get(profile.client) or self.epochs[profile.client] * batches
        taken = range(rounds.start * steps, rounds.stop * steps)
        moved = trained_reach(self.training, batches, taken, self.rounds * steps, part, numel) if batches else 0.0
        clip = inf if self.privacy.clip is None else self.privacy.clip * len(rounds)
        noise = noise_reach(max(self.own_noise, self.privacy.deviation), len(rounds), numel)
        return Limit(moved, clip, noise)


@dataclass(frozen=True)
class MoveLimits:
    """The farthest that these clients' rows can move."""

    profiles: Mapping[str, Profile]
    reach: RowReach

    @cached_property
    def _median(self) -> int:
        return median_low([profile.samples for profile in self.profiles.values()] or [0])

    def of(self, client: str, slot: Slot, rounds: range) -> Limit:
        """The farthest that a client's row can have moved in these rounds."""
        profile = self.profiles[client]
        return self.reach.of_row(profile, slot.part, profile.layouts[slot].numel, rounds, self._median)


@dataclass(frozen=True)
class Move:
    """How far a row is from the start of its client's training, and the farthest that training can move it.

    `followed`: whether the start is known, so that moves of several rounds can be compared. `by` describes the limit.
    """

    distance: float
    limit: Limit = NO_LIMIT
    followed: bool = False
    by: str = "what its steps and learning rates allow"

    @property
    def share(self) -> float:
        """The share of the possible move that a row made; 0 if it is unknown."""
        possible = self.limit.within(1.0)
        return self.distance / possible if self.followed and 0 < possible < inf else 0.0


@dataclass(frozen=True)
class TrainedRow:
    """A row after training, before it if the server knows that, and the farthest that it can have moved."""

    row: Tensor
    start: Tensor | None
    limit: Limit  # in this round
    ever: Limit  # since the first round

    def rounding(self, length: float) -> Limit:
        """What rounding may add to the distance of rows of this length."""
        return Limit(0.0, 0.0, 2 * torch.finfo(self.row.dtype).eps * length)


def moves_of_parameters(part: Part, rows: Rows, trained: Sequence[TrainedRow]) -> list[Move]:
    """Compare parameters with what their client was sent before training, if the server knows that."""
    known = [number for number, each in enumerate(trained) if each.start is not None]
    moves = dict(enumerate(_measure_since_first(part, rows, trained))) if len(known) < len(trained) else {}
    if known:
        moves |= zip(known, _measure_since_start(rows, trained, known), strict=True)
    return [moves[number] for number in range(len(trained))]


def _measure_since_start(rows: Rows, trained: Sequence[TrainedRow], known: Sequence[int]) -> list[Move]:
    selected = rows if len(known) == len(trained) else _select(rows, trained, known)
    starts = [start for each in trained if (start := each.start) is not None]
    lengths = [float(torch.linalg.vector_norm(start, dtype=torch.float64)) for start in starts]
    return [
        Move(distance, trained[number].limit + trained[number].rounding(length), True)
        for number, length, distance in zip(known, lengths, selected.norms(starts).tolist(), strict=True)
    ]


def _measure_since_first(part: Part, rows: Rows, trained: Sequence[TrainedRow]) -> list[Move]:
    """Without known starts, limits apply since the first round.

    Encoders are compared with each other, since all start equal. Decoders and heads are compared by length, since all
    start from one distribution.
    """
    lengths = rows.norms().tolist()
    moves = [Move(length) for length in lengths]
    finite = [number for number, length in enumerate(lengths) if isfinite(length)]
    if part == "encoder" and len(finite) > 1:
        for number, distance in zip(finite, _measure_to_most_others(_select(rows, trained, finite)), strict=True):
            farthest = max((trained[other].ever for other in finite if other != number), key=lambda one: one.within(1))
            limit = trained[number].ever + farthest + trained[number].rounding(lengths[number])
            moves[number] = Move(distance, limit)
    elif part != "encoder" and finite:
        usual = Limit(0.0, 0.0, ALIKE * median(lengths[number] for number in finite))
        by = f"{ALIKE:g} times the others' usual length"
        for number in finite:
            moves[number] = Move(lengths[number], usual + trained[number].ever, by=by)
    return moves


def moves_of_statistics(rows: Rows) -> list[Move]:
    """Compare running statistics by length with the others': they follow the data, not the learning rate.

    Honest statistics differ by data and by training; a factor of 7 has been observed.
    """
    times, lengths, moves = 100.0, rows.norms().tolist(), []
    for number, length in enumerate(lengths):
        others = [other for other in (*lengths[:number], *lengths[number + 1 :]) if isfinite(other)]
        usual = Limit(0.0, 0.0, times * median(others)) if others else NO_LIMIT
        moves.append(Move(length, usual, by=f"{times:g} times the others' usual length"))
    return moves


def _select(rows: Rows, trained: Sequence[TrainedRow], chosen: Sequence[int]) -> Rows:
    return Rows([rows.members[number] for number in chosen], rows.layout, [trained[number].row for number in chosen])


def _measure_to_most_others(rows: Rows) -> list[float]:
    """How far each row is from the nearest half of the others."""
    gram = rows.products("differences", whole=True)[0]
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0).sqrt()
    return [median_low(each[:number] + each[number + 1 :]) for number, each in enumerate(distances.tolist())]
