"""How far training can move a row, for any data."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, sqrt

import torch
from torch import Tensor

from fedhca2.clients.optimizer import BETAS
from fedhca2.clients.training import Training
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.params import Slot

SLACK = 1.05  # for weight decay and rounding
ALIKE = 10.0  # fresh rows of one layout come from one distribution, so their lengths are similar
SURE = 6.0  # standard deviations from its expected length that noise practically never exceeds


def adam_reach(first: float = BETAS[0], second: float = BETAS[1]) -> float:
    r"""The most learning rates that Adam can move a value in one step, for any gradients.

    With $m = \sum_i w_i g_i$ and $v = \sum_i u_i g_i^2$, Cauchy and Schwarz give
    $|m|/\sqrt v \le \sqrt{\sum_i w_i^2/u_i} \le (1-\beta_1)/\sqrt{(1-\beta_2)(1-\beta_1^2/\beta_2)}$.

    >>> round(adam_reach(), 2)
    7.27
    """
    return (1 - first) / sqrt((1 - second) * (1 - first**2 / second))


def trained_reach(training: Training, steps: int, epochs: Iterable[int], total: int, numel: int) -> float:
    """The farthest that these epochs, with `steps` steps each, can move a row of `numel` values."""
    rates = (training.schedule.rate(epoch, total, training.learning_rate) for epoch in epochs)
    return SLACK * adam_reach() * sqrt(numel) * (steps * sum(rates))


def noise_reach(deviation: float, rounds: int, numel: int) -> float:
    """The longest that noise of this many rounds makes a row of `numel` values."""
    return deviation * rounds * (sqrt(numel) + SURE)


@dataclass(frozen=True)
class FirstRow:
    """A slot's row before any training: its number of values and its length."""

    numel: int
    length: float

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "FirstRow":
        """Measure the row of these tensors."""
        norms = torch._foreach_norm([tensor.detach().float() for tensor in tensors.values()])
        return cls(sum(tensor.numel() for tensor in tensors.values()), float(torch.stack(norms).norm()))


def first_rows(model: MultiTaskModel) -> dict[Slot, FirstRow]:
    """Measure the rows of all slots of an untrained model."""
    return {slot: FirstRow.of(tensors) for slot, tensors in model.slots().items()}


@dataclass(frozen=True)
class RowLimits:
    """How long received rows can be, if they come from the same kind of training as the client's own."""

    first: Mapping[Slot, FirstRow]
    training: Training
    steps: int  # per epoch
    epochs: int  # per round
    rounds: int
    noise: float  # standard deviation of the noise that others may add to each value

    def longest(self, slot: Slot, round: int) -> float:
        """The longest that a slot's row can be in this round.

        Others have different images and epochs, so they may have moved ten times as far. Running statistics have no
        limit, since they follow the data.
        """
        if slot.part.endswith("_norms"):
            return inf
        first = self.first[slot]
        epochs, total = range((round + 1) * self.epochs), self.rounds * self.epochs
        trained = trained_reach(self.training, self.steps, epochs, total, first.numel)
        return ALIKE * (first.length + trained + noise_reach(self.noise, round + 1, first.numel))
