"""How far a client's rows moved in a round, and how far its training can have moved them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite
from statistics import median, median_low

import torch
from torch import Tensor

from fedhca2.aggregation import Rows
from fedhca2.clients import Privacy, Training
from fedhca2.clients.reach import ALIKE, noise_reach, trained_reach
from fedhca2.experiment import Experiment
from fedhca2.messages import Profile
from fedhca2.params import Part


@dataclass(frozen=True)
class Reach:
    """How far local training can move rows, by the steps, learning rates and noise that an experiment declares."""

    training: Training
    privacy: Privacy
    rounds: int
    epochs: Mapping[str, int]
    own_noise: float = 0.0  # deviation of what sites may add to each value by themselves

    @classmethod
    def of(cls, experiment: Experiment) -> "Reach":
        """The reach of an experiment's clients."""
        epochs = {spec.name: spec.epochs for spec in experiment.specs}
        return cls(experiment.training, experiment.privacy, experiment.rounds, epochs, experiment.guard.noise)

    def of_row(self, profile: Profile, numel: int, rounds: range) -> float:
        """The farthest that a row of so many values can be from where it was before these rounds."""
        epochs = self.epochs[profile.client]
        steps = profile.samples // self.training.batch_size
        turns = range(rounds.start * epochs, rounds.stop * epochs)
        moved = trained_reach(self.training, steps, turns, self.rounds * epochs, numel)
        if self.privacy.clip is not None:
            moved = min(moved, self.privacy.clip * len(rounds))
        return moved + noise_reach(max(self.own_noise, self.privacy.deviation), len(rounds), numel)


@dataclass(frozen=True)
class Move:
    """How far a row is from where its client's training began, and the farthest that training can have brought it.

    `followed` says whether the start is known, so that moves of several rounds can be compared.
    """

    distance: float
    limit: float
    followed: bool


@dataclass(frozen=True)
class Trained:
    """A row after training, before it if the server knows that, and the farthest that it can have come."""

    row: Tensor
    start: Tensor | None
    limit: float

    @property
    def rounding(self) -> float:
        """How much of a row's length its number format may add to a distance."""
        return 2 * torch.finfo(self.row.dtype).eps


def moves_of_updates(lengths: Sequence[float], trained: Sequence[Trained]) -> list[Move]:
    """Updates are moves already."""
    return [Move(length, each.limit, True) for length, each in zip(lengths, trained, strict=True)]


def moves_of_parameters(part: Part, rows: Rows, trained: Sequence[Trained]) -> list[Move]:
    """Parameters are compared with what every client was sent before it trained.

    Where the server does not know that of all, limits are since the first round: encoders are compared with each
    other, since all start equal, and decoders and heads by their lengths, since all start from one distribution.
    """
    starts = [each.start for each in trained if each.start is not None]
    if len(starts) == len(trained):
        lengths = {id(start): float(torch.linalg.vector_norm(start, dtype=torch.float64)) for start in starts}
        limits = [each.limit + each.rounding * lengths[id(start)] for each, start in zip(trained, starts, strict=True)]
        return [Move(*pair, True) for pair in zip(rows.norms(starts).tolist(), limits, strict=True)]
    lengths_now = rows.norms().tolist()
    finite = [number for number, length in enumerate(lengths_now) if isfinite(length)]
    moves = [Move(length, inf, False) for length in lengths_now]
    if part == "encoder" and len(finite) > 1:
        distances = _from_most_others(rows, trained, finite)
        for number, distance in zip(finite, distances, strict=True):
            farthest = max(trained[other].limit for other in finite if other != number)
            rounding = trained[number].rounding * lengths_now[number]
            moves[number] = Move(distance, trained[number].limit + farthest + rounding, False)
    elif part != "encoder" and finite:
        usual = ALIKE * median(lengths_now[number] for number in finite)
        for number in finite:
            moves[number] = Move(lengths_now[number], usual + trained[number].limit, False)
    return moves


def _from_most_others(rows: Rows, trained: Sequence[Trained], chosen: Sequence[int]) -> list[float]:
    """How far each of the chosen rows is from the nearer half of the others."""
    some = Rows([rows.members[number] for number in chosen], rows.layout, [trained[number].row for number in chosen])
    gram = some.products("differences", whole=True)[0]
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0).sqrt()
    return [median_low(each[:number] + each[number + 1 :]) for number, each in enumerate(distances.tolist())]
