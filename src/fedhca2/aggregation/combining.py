"""Updates combined coordinate by coordinate: medians, trimmed means, and the merging of task vectors."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Combined, Mixing
from fedhca2.aggregation.rows import Member, Rows
from fedhca2.messages import Base, Kind
from fedhca2.params import Layout


class Combiner(Aggregator):
    """Base class of aggregators that look at single coordinates: what is combined replaces the clients' own updates."""

    sends: ClassVar[Kind] = "updates"
    base: ClassVar[Base] = "start"
    reveals: ClassVar[str] = "which must see every value of every row"

    @abstractmethod
    def combine(self, block: Tensor, members: Sequence[Member], measured: Tensor) -> Tensor:
        """From some columns of all rows, [N, n] in float64, compute [M, n]: every column from itself alone.

        Blocks come one after another, with any number of columns.

        :param measured: what `measured` said about the whole rows.
        """

    def measured(self, rows: Rows) -> Tensor:
        """The numbers that `combine` needs to know about whole rows, from a pass over them; none by default."""
        return torch.empty(0)

    def gets(self, members: Sequence[Member]) -> tuple[int, ...]:
        """The number of the combined row that every member gets; by default there is one for all."""
        return (0,) * len(members)

    def products(self, rows: Rows, round: int) -> Tensor:
        """No inner products, but what it measures."""
        return self.measured(rows)

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Combine all rows once."""
        combined = Combined(lambda block: self.combine(block, members, products), self.gets(members))
        return Mixing(self.base, (combined,))


class TrimmedMean(Combiner):
    """One update for all, the mean of each coordinate without its extreme values, or its median."""

    kind: Literal["trimmed_mean"] = "trimmed_mean"
    hostile: int | None = Field(
        1, ge=0, description="number of values to leave out at each end of a coordinate; null: all but the median"
    )

    def combine(self, block: Tensor, members: Sequence[Member], measured: Tensor) -> Tensor:
        """One row."""
        most = (len(block) - 1) // 2
        cut = most if self.hostile is None else min(self.hostile, most)
        if block.device.type == "cpu":  # numpy sorts columns ten times as fast as torch there
            in_order = torch.from_numpy(np.sort(block.numpy(), axis=0))
        else:
            in_order = block.sort(0).values
        return in_order[cut : len(block) - cut].mean(dim=0, keepdim=True)


class TiesMerging(Combiner):
    """One update for all: trim, elect signs, and average the updates that agree with them (TIES)."""

    kind: Literal["ties"] = "ties"
    keep: float = Field(0.2, gt=0, le=1, description="share of an update's values that count, the largest")
    rate: float = Field(1.0, gt=0, description="λ, factor of the merged update")

    def measured(self, rows: Rows) -> Tensor:
        """Every row's threshold."""
        return rows.thresholds(self.keep)

    def combine(self, block: Tensor, members: Sequence[Member], measured: Tensor) -> Tensor:
        """One row: the mean of the values that are large enough and have the sign of their sum (Yadav et al. 2023)."""
        large = block * (block.abs() >= measured[:, None])
        agree = (large * large.sum(dim=0)) > 0
        return self.rate * ((large * agree).sum(dim=0) / agree.sum(dim=0).clamp(min=1))[None]


def mask_by_sign(block: Tensor) -> Tensor:
    """The elected update where a row has its sign, and 0 elsewhere, for each row: [N, n] (Huang et al. 2024).

    Elected are the sign of the sum, and the largest absolute value among those with this sign.

    >>> mask_by_sign(torch.tensor([[3.0, -1.0], [1.0, -2.0], [-1.0, 4.0]]))
    tensor([[3., 0.],
            [3., 0.],
            [0., 4.]])
    """
    agree = block * block.sum(dim=0) > 0
    elected = (block * agree).abs().max(dim=0).values
    return torch.where(agree, elected * block.sign(), 0.0)


class EmrMerging(Combiner):
    """EMR merging: one update elected for all, masked by the signs of a client's own, and scaled like that."""

    kind: Literal["emr"] = "emr"

    def measured(self, rows: Rows) -> Tensor:
        """Every row's scale: the sum of its own absolute values over that of its masked update."""
        own, masked = rows.sums(lambda block: torch.stack([block, mask_by_sign(block)]).abs().sum(dim=2))
        return torch.where(masked > 0, own / masked, torch.zeros_like(own))

    def combine(self, block: Tensor, members: Sequence[Member], measured: Tensor) -> Tensor:
        """One row for each member."""
        return mask_by_sign(block) * measured[:, None]

    def gets(self, members: Sequence[Member]) -> tuple[int, ...]:
        """Each its own."""
        return tuple(range(len(members)))


class SignAgreement(Combiner):
    """One update for all: the mean of the coordinates in which enough clients agree on the sign, and 0 elsewhere."""

    kind: Literal["sign_agreement"] = "sign_agreement"
    least: float = Field(
        0.5, ge=0, le=1, description="least agreement |Σ sign Δ|/N of a coordinate that counts; 0: all count"
    )

    def combine(self, block: Tensor, members: Sequence[Member], measured: Tensor) -> Tensor:
        """One row."""
        agreement = block.sign().mean(dim=0, keepdim=True).abs()
        return block.mean(dim=0, keepdim=True) * (agreement >= self.least - 1e-9)
