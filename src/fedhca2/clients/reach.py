"""How far training can move a row, whatever it is trained on."""

from collections.abc import Iterable
from math import sqrt

from fedhca2.clients.training import Training

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
