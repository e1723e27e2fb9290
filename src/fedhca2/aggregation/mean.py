"""The mean of all rows: FedAvg, and what most other methods are built on."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, By, Measure, Member, Mixing
from fedhca2.messages import Kind
from fedhca2.params import Layout


def mean_weights(samples: Sequence[int]) -> Tensor:
    r"""Weights $n_i / \sum_j n_j$ of a mean, [N].

    >>> mean_weights([1, 3])
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    counts = torch.tensor(samples, dtype=torch.float64)
    return counts / counts.sum()


class Mean(Aggregator):
    """Every member gets the mean of all parameters, uniform or by the number of samples."""

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "nothing"

    kind: Literal["mean"] = "mean"
    by: By = "clients"

    @property
    def reveals_rows(self) -> str:
        """One sum of all."""
        return ""

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """One mixed row for all, in place of their own."""
        weights = mean_weights([member.samples if self.by == "samples" else 1 for member in members])
        return Mixing("nothing", (Blend(weights[None], (0,) * len(members)),))
