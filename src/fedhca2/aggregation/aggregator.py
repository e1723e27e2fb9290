"""The interface of an aggregator: inner products of rows in, a small mixing matrix out."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.config import Config
from fedhca2.messages import Base, Kind
from fedhca2.params import Layout

if TYPE_CHECKING:
    from fedhca2.aggregation.rows import Rows

# Which inner products a mixing needs: none, of the rows, or of the rows minus the first of them (which keeps all
# digits of the differences between parameters that are close together).
Measure = Literal["nothing", "rows", "differences"]
By = Annotated[Literal["clients", "samples"], Field(description="what counts equally in a mean: clients or images")]


@dataclass(frozen=True)
class Member:
    """The owner of a row. Members of one group have the same data set and the same task or tasks.

    `kept` is the number the aggregator kept for this member (`Mixing.keeps`) when it last took part.
    """

    name: str
    group: str
    samples: int = 1
    kept: float | None = None


@dataclass(frozen=True)
class Blend:
    """Rows mixed from all members' rows: `weights` is [M, N], or [P, M, N] with one matrix per tensor of the layout.

    Member i gets mixed row `gets[i]`, multiplied by its own learned weight if `hyper` is set.
    """

    weights: Tensor
    gets: tuple[int, ...]
    hyper: bool = False

    @property
    def is_mean(self) -> bool:
        """Whether it mixes whole rows with non-negative weights that sum to 1."""
        sums = self.weights.sum(dim=-1)
        whole = self.weights.dim() == 2 and not self.hyper
        return whole and bool((self.weights >= 0).all()) and torch.allclose(sums, torch.ones_like(sums))


@dataclass(frozen=True)
class Mixing:
    """Every member's next value: `base` plus its blends.

    If layers vote, `votes` [L, N, N] holds their votes for reports. `keeps` holds one number per member, or none, which
    the aggregator gets back in the next round.
    """

    base: Base
    blends: tuple[Blend, ...]
    votes: Tensor | None = None
    keeps: tuple[float, ...] = ()

    def of_statistics(self, members: int) -> "Mixing":
        """How to mix the running statistics of this many members' rows.

        If every member gets a weighted mean of rows, it gets the same mean of their statistics. Otherwise it gets the
        plain mean: other weights could make a variance negative.

        >>> mixing = Mixing("nothing", (Blend(torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]), (0, 0, 1)),))
        >>> mixing.of_statistics(3) == mixing
        True
        >>> Mixing("trained", (Blend(torch.tensor([[0.6, 0.6]]), (0, 0), hyper=True),)).of_statistics(2).blends
        (Blend(weights=tensor([[0.5000, 0.5000]], dtype=torch.float64), gets=(0, 0), hyper=False),)
        """
        if self.base != "trained" and len(self.blends) == 1 and self.blends[0].is_mean:
            return Mixing("nothing", self.blends)
        weights = torch.full((1, members), 1 / members, dtype=torch.float64)
        return Mixing("nothing", (Blend(weights, (0,) * members),))


class Aggregator(Config, ABC):
    """Base class of all aggregators: frozen settings and one pure function."""

    sends: ClassVar[Kind]
    measure: ClassVar[Measure]
    whole: ClassVar[bool] = False  # whether products of whole rows are enough

    kind: str = ""
    every: Annotated[int, Field(ge=1, description="aggregate only in every n-th round")] = 1

    @property
    def compares_models(self) -> bool:
        """Whether it compares whole models, which include running statistics, and not updates or single tensors."""
        return self.sends == "parameters" and self.measure != "nothing" and self.whole

    @property
    def learns(self) -> bool:
        """Whether members learn weights; `first_weights` then gives their initial values."""
        return False

    @property
    def reveals_rows(self) -> str:
        """Explain why its sums reveal rows; empty if every row goes into one sum with others, and into no other."""
        return "which puts a row in several sums, and these reveal the rows"

    def at(self, done: float) -> Self:
        """The aggregator as it is after this part (0 to 1) of a run's rounds."""
        return self

    def first_weights(self, layout: Layout) -> tuple[float, ...]:
        """Initial values of a member's learned weights: one for the row, one per layer, or none."""
        return ()

    def products(self, rows: "Rows", round: int) -> Tensor:
        """The inner products that its mixing needs, of the rows of this round."""
        return rows.products(self.measure, self.whole)

    @abstractmethod
    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """The mixing for these inner products in float64, [P, N, N] by tensor, or [1, N, N] of `whole` rows."""
