"""How far training can move a client's rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Protocol

from fedhca2.clients import Privacy, Training
from fedhca2.clients.exchange import noise_reach, trained_reach
from fedhca2.experiment import Experiment
from fedhca2.messages import Profile

# Honest steps move a row by at most an eighth of what any gradients could do, so that whoever has up to fifteen times
# the median's images passes with this, and a lie gains no more than a factor of two (docs/security.md).
TIMES_THE_MEDIAN = 2


@dataclass(frozen=True)
class Limit:
    """The farthest that a row can move: by its steps, within its clip, plus an allowance for what is not training.

    A guard may allow only a share of the steps' part. The parts for clip, noise and rounding are not scaled.

    >>> Limit(steps=20.0, clip=5.0, beside=1.0).within(0.1)
    3.0
    """

    steps: float
    clip: float = inf
    beside: float = 0.0

    def within(self, share: float) -> float:
        """The farthest move with this share of the steps' part."""
        return min(share * self.steps, self.clip) + self.beside

    def __add__(self, other: "Limit") -> "Limit":
        return Limit(self.steps + other.steps, self.clip + other.clip, self.beside + other.beside)


NO_LIMIT = Limit(inf)


class RowReach(Protocol):
    """How far local training can move rows."""

    def of_row(self, profile: Profile, numel: int, rounds: range, median: int) -> Limit:
        """The farthest that a row of `numel` values can move in these rounds.

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
    images: Mapping[str, int] = field(default_factory=dict)  # the most that clients have, as far as this is declared

    @classmethod
    def of(cls, experiment: Experiment) -> "Reach":
        """The reach of an experiment's clients."""
        epochs, guard = {spec.name: spec.epochs for spec in experiment.specs}, experiment.guard
        return cls(experiment.training, experiment.privacy, experiment.rounds, epochs, guard.noise, guard.images)

    def steps(self, profile: Profile, median: int) -> int:
        """Steps of an epoch that a client is believed to take: as many as its images, within what is declared.

        If nothing is declared for it, within twice the lower median of what all clients say, which no client can raise
        by itself.
        """
        most = self.images.get(profile.client, TIMES_THE_MEDIAN * median)
        return min(profile.samples, most) // self.training.batch_size

    def of_row(self, profile: Profile, numel: int, rounds: range, median: int) -> Limit:
        """The farthest that a row of `numel` values can move in these rounds, by the steps that are believed."""
        epochs = self.epochs[profile.client]
        steps = self.steps(profile, median)
        turns = range(rounds.start * epochs, rounds.stop * epochs)
        moved = trained_reach(self.training, steps, turns, self.rounds * epochs, numel)
        clip = inf if self.privacy.clip is None else self.privacy.clip * len(rounds)
        noise = noise_reach(max(self.own_noise, self.privacy.deviation), len(rounds), numel)
        return Limit(moved, clip, noise)
