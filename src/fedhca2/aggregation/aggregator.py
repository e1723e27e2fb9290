"""The interface of an aggregator: inner products of rows in, a small mixing matrix or a function of columns out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.rows import Measure, Member, Rows
from fedhca2.config import Config
from fedhca2.messages import Base, Kind
from fedhca2.params import Layout


@dataclass(frozen=True)
class Blend:
    """Rows mixed from all members' rows: `weights` is [M, N], or [P, M, N] with one matrix per tensor of the layout.

    Member i gets mixed row `gets[i]`, multiplied by its own learned weight if `hyper` is set, or else by `scale`.
    """

    weights: Tensor
    gets: tuple[int, ...]
    hyper: bool = False
    scale: float = 1.0

    @property
    def is_mean(self) -> bool:
        """Whether it mixes whole rows with non-negative weights that sum to 1."""
        sums = self.weights.sum(dim=-1)
        whole = self.weights.dim() == 2 and not self.hyper and self.scale == 1
        return whole and bool((self.weights >= 0).all()) and torch.allclose(sums, torch.ones_like(sums))


@dataclass(frozen=True)
class Combined:
    """Rows that a function makes from all members' rows: a block of their columns, [N, n] in float64, becomes [M, n].

    Every column must be made from itself alone: blocks come one after another, with any number of columns. Member i
    gets row `gets[i]`, multiplied by its own learned weight if `hyper` is set, or else by `scale`.
    """

    function: Callable[[Tensor], Tensor]
    gets: tuple[int, ...]
    hyper: bool = False
    scale: float = 1.0


@dataclass(frozen=True)
class Mixing:
    """Every member's next value: `base` plus its blends.

    If layers vote, `votes` [L, N, N] holds their votes for reports. `keeps` holds one number per member, or none, which
    the aggregator gets back in the next round.
    """

    base: Base
    blends: tuple[Blend | Combined, ...]
    votes: Tensor | None = None
    keeps: tuple[float, ...] = ()

    @property
    def sums(self) -> tuple[Blend, ...]:
        """The blends that are weighted sums of rows."""
        return tuple(blend for blend in self.blends if isinstance(blend, Blend))

    def discounted(self, factors: Sequence[float]) -> "Mixing":
        """The same with every member's row counted so many times. Mixtures of parameters keep their total weight.

        >>> Mixing("nothing", (Blend(torch.tensor([[0.5, 0.5]]), (0, 0)),)).discounted([1.0, 0.5]).blends[0].weights
        tensor([[0.6667, 0.3333]], dtype=torch.float64)
        """
        if all(factor == 1 for factor in factors):
            return self
        blends: list[Blend | Combined] = []
        for blend in self.blends:
            if isinstance(blend, Combined):
                blends.append(replace(blend, function=_scale_rows(blend.function, factors)))
                continue
            weights = blend.weights.double() * torch.tensor(factors, dtype=torch.float64)
            if self.base == "nothing":
                total, left = blend.weights.double().sum(dim=-1, keepdim=True), weights.sum(dim=-1, keepdim=True)
                weights = torch.where(left.abs() > 0, weights * total / left, blend.weights.double())
            blends.append(replace(blend, weights=weights))
        return replace(self, blends=tuple(blends))

    def of_statistics(self, members: int) -> "Mixing":
        """How to mix the running statistics of this many members' rows.

        If every member gets a weighted mean of rows, it gets the same mean of their statistics. Otherwise it gets the
        plain mean: other weights could make a variance negative.

        >>> mixing = Mixing("nothing", (Blend(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), (0, 0, 1)),))
        >>> mixing.of_statistics(3) == mixing
        True
        >>> Mixing("trained", (Blend(torch.tensor([[0.6, 0.6]]), (0, 0), hyper=True),)).of_statistics(2).blends
        (Blend(weights=tensor([[0.5000, 0.5000]], dtype=torch.float64), gets=(0, 0), hyper=False, scale=1.0),)
        """
        if self.base != "trained" and len(self.blends) == len(self.sums) == 1 and self.sums[0].is_mean:
            return Mixing("nothing", self.blends)
        weights = torch.full((1, members), 1 / members, dtype=torch.float64)
        return Mixing("nothing", (Blend(weights, (0,) * members),))


def _scale_rows(function: Callable[[Tensor], Tensor], factors: Sequence[float]) -> Callable[[Tensor], Tensor]:
    """The function of rows that were multiplied by these factors."""
    return lambda block: function(block * torch.tensor(factors, dtype=block.dtype, device=block.device)[:, None])


class Aggregator(Config, ABC):
    """Base class of all aggregators: frozen settings and one pure function.

    A subclass says what members send (`sends`) and which inner products it needs (`measure`, and `whole` if those of
    whole rows are enough), and turns them into mixing weights in `mixing`. `examples/add_a_method.py` has one.
    """

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "nothing"
    whole: ClassVar[bool] = False  # whether products of whole rows are enough
    keeps_rows: ClassVar[int] = 0  # how many rows the server keeps between rounds, for each layout of a part
    sums_once: ClassVar[bool] = False  # whether every row goes into one sum with others, and into no other
    reveals: ClassVar[str] = "which puts a row in several sums, and these reveal the rows"  # why sums do otherwise

    kind: str = ""
    every: int = Field(1, ge=1, description="aggregate only in every n-th round")

    @property
    def compares_models(self) -> bool:
        """Whether it compares whole models, which include running statistics, and not updates or single tensors."""
        return self.sends == "parameters" and self.measure != "nothing" and self.whole

    @property
    def learns(self) -> bool:
        """Whether members learn weights; `first_weights` then gives their initial values."""
        return False

    @property
    def reveals_rows(self) -> str | None:
        """Explain why its sums reveal rows, if they do."""
        return None if self.sums_once else self.reveals

    def at(self, done: float) -> Self:
        """The aggregator as it is after this part (0 to 1) of a run's rounds."""
        return self

    def first_weights(self, layout: Layout) -> tuple[float, ...]:
        """Initial values of a member's learned weights: one for the row, one per layer, or none."""
        return ()

    def products(self, rows: Rows, round: int) -> Tensor:
        """What its mixing needs to know of this round's rows: inner products, or whatever else it measures."""
        return rows.products(self.measure, self.whole)

    @abstractmethod
    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Compute the mixing weights.

        :param products: inner products in float64: [P, N, N], a Gram matrix for each tensor, or [1, N, N] if `whole`.
        :param members: the owners of the N rows, in order.
        :param layout: the tensors that a row consists of.
        """

    def renew(self, mixed: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """What members get instead of the mixed rows, [M, n], and the rows to keep, [K, n].

        It is called with some columns at a time, in float64, and must compute each column from itself alone.

        :param mixed: the mixed rows, [M, n].
        :param kept: the rows that it kept the last time, [K, n], or [0, n] the first time.
        """
        return mixed, kept
