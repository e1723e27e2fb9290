"""The base class of metrics, and the running sums that most metrics use."""

from typing import Self

import torch
from torch import Tensor


class Metric:
    """The base class of metrics, which accumulate over a whole validation split.

    The headline is NaN if and only if there was nothing valid.
    """

    name: str
    higher_is_better: bool = True
    largest: float = 100.0  # the largest value, or the largest told apart when noise is added; the smallest is 0
    for_plain_maps: bool = True  # whether a map of one value has a score that is worth the time

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add a batch: predictions in the task's final form, labels with 255 for ignored pixels."""
        raise NotImplementedError

    def merge(self, other: Self) -> None:
        """Add the data of another accumulator of the same kind."""
        raise NotImplementedError

    def compute(self) -> dict[str, float]:
        """The scores of all batches so far, the headline first."""
        raise NotImplementedError


class Sums(Metric):
    """Running sums on the device of the addends, in int64 or float64, without waiting for that device."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        self.sums = torch.zeros(shape, dtype=dtype)

    def add(self, addend: Tensor) -> None:
        """Add to the sums, which move to the device of the first addend."""
        self.sums = self.sums.to(addend.device)
        self.sums += addend

    def merge(self, other: Self) -> None:
        """Add the sums of another accumulator of the same kind."""
        self.add(other.sums.to(self.sums.device))


class MeanOfValues(Sums):
    """The mean of valid values over the whole split."""

    def __init__(self) -> None:
        super().__init__(2, dtype=torch.float64)

    def add_values(self, values: Tensor, valid: Tensor) -> None:
        """Add the values that are valid."""
        self.add(torch.stack((torch.where(valid, values, 0.0).sum(), valid.sum())))

    @property
    def mean(self) -> Tensor:
        """The mean so far."""
        total, count = self.sums.cpu().unbind()
        return total / count

    def compute(self) -> dict[str, float]:
        """The mean."""
        return {self.name: float(self.mean)}


def histogram(index: Tensor, bins: int) -> Tensor:
    """Count how often each of 0 … bins − 1 occurs, in int64; unlike `torch.bincount` it never waits for the device.

    >>> histogram(torch.tensor([[0, 2], [2, 2]]), bins=3)
    tensor([1, 0, 3])
    """
    flat = index.reshape(-1)
    copies = 256 if flat.is_cuda else 1
    if copies > 1:  # neighbours count in different places, so that they do not wait for each other
        flat = flat + bins * (torch.arange(len(flat), device=flat.device) % copies)
    counts = torch.zeros(copies * bins, dtype=torch.int64, device=index.device)
    return counts.scatter_add_(0, flat, torch.ones_like(flat)).view(copies, bins).sum(dim=0)
