"""How far training can move a row, whatever it is trained on."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import inf, sqrt

import torch
from torch import Tensor

from fedhca2.clients.training import Training
from fedhca2.models.multitask import MultiTaskModel
from fedhca2.params import Slot

BETAS = (0.9, 0.999)  # of Adam, as every optimiser here has them
SLACK = 1.05  # for weight decay and rounding
ALIKE = 10.0  # fresh rows of one layout come from one distribution: their lengths are close together
SURE = 6.0  # deviations from its expected length that noise does not leave


def adam_reach(first: float = BETAS[0], second: float = BETAS[1]) -> float:
    r"""The most learning rates that Adam moves a value in one step, whatever the gradients.

    With $m = \sum_i w_i g_i$ and $v = \sum_i u_i g_i^2$, Cauchy and Schwarz give
    $|m|/\sqrt v \le \sqrt{\sum_i w_i^2/u_i} \le (1-\beta_1)/\sqrt{(1-\beta_2)(1-\beta_1^2/\beta_2)}$.

    >>> round(adam_reach(), 2)
    7.27
    """
    return (1 - first) / sqrt((1 - second) * (1 - first**2 / second))


def trained_reach(training: Training, steps: int, epochs: Iterable[int], total: int, numel: int) -> float:
    """The farthest that these epochs, of so many steps each and so many epochs in all, move a row of so many values."""
    rates = (training.schedule.rate(epoch, total, training.learning_rate) for epoch in epochs)
    return SLACK * adam_reach() * sqrt(numel) * (steps * sum(rates))


def noise_reach(deviation: float, rounds: int, numel: int) -> float:
    """The longest that noise of so many rounds makes a row of so many values."""
    return deviation * rounds * (sqrt(numel) + SURE)


@dataclass(frozen=True)
class FirstRow:
    """The row of a slot before any training: how many values it has, and how long it is."""

    numel: int
    length: float

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "FirstRow":
        """The row that these tensors make."""
        norms = torch._foreach_norm([tensor.detach().float() for tensor in tensors.values()])
        return cls(sum(tensor.numel() for tensor in tensors.values()), float(torch.stack(norms).norm()))


def first_rows(model: MultiTaskModel) -> dict[Slot, FirstRow]:
    """The rows of all slots of a model that has not been trained."""
    return {slot: FirstRow.of(tensors) for slot, tensors in model.slots().items()}


@dataclass(frozen=True)
class RowLimits:
    """How long the rows that a client is sent can be, if they come from training as the client's own is."""

    first: Mapping[Slot, FirstRow]
    training: Training
    steps: int  # of an epoch
    epochs: int  # of a round
    rounds: int
    noise: float  # the deviation of what others may add to each value

    def longest(self, slot: Slot, round: int) -> float:
        """The longest that a slot's row can be in this round.

        Others have other images and epochs, so they may have come ten times as far. Running statistics have no limit:
        they follow the data.
        """
        if slot.part.endswith("_norms"):
            return inf
        first = self.first[slot]
        epochs, total = range((round + 1) * self.epochs), self.rounds * self.epochs
        trained = trained_reach(self.training, self.steps, epochs, total, first.numel)
        return ALIKE * (first.length + trained + noise_reach(self.noise, round + 1, first.numel))
