"""The interface of an aggregator: inner products of rows in, a small mixing matrix out."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, get_args

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.config import Config
from fedhca2.errors import UserError
from fedhca2.imports import explain_errors
from fedhca2.messages import Base, Kind
from fedhca2.params import Layout, Part

if TYPE_CHECKING:
    from fedhca2.aggregation.rows import Rows

log = logging.getLogger("fedhca2.methods")
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

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "nothing"
    whole: ClassVar[bool] = False  # whether products of whole rows are enough
    sums_once: ClassVar[bool] = False  # whether every row goes into one sum with others, and into no other

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
    def reveals_rows(self) -> str | None:
        """Explain why its sums reveal rows, if they do."""
        return None if self.sums_once else "which puts a row in several sums, and these reveal the rows"

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


def mixing_of(
    aggregator: Aggregator, part: Part, products: Tensor, members: Sequence[Member], layout: Layout
) -> Mixing:
    """Ask the aggregator of a part for its mixing; raises UserError if that is not usable, or if a user's own fails."""
    if not _is_users(aggregator):
        mixing = aggregator.mixing(products, members, layout)
    else:
        with explain_errors(f"method.{part}", f"{_shown(aggregator)}: expected a Mixing"):
            mixing = aggregator.mixing(products, members, layout)
    try:
        _check_mixing(mixing, len(members), len(layout.names))
        if any(blend.hyper for blend in mixing.blends) and not aggregator.first_weights(layout):
            raise ValueError(
                "first_weights(): expected values of learned weights, since a Blend has hyper=True, got none"
            )
    except ValueError as error:
        raise UserError(f"method.{part}", f"{_shown(aggregator)}: {error}") from error
    return mixing


def try_aggregator(aggregator: Aggregator, part: Part, members: Sequence[Member], layout: Layout) -> None:
    """Ask a user's own aggregator of a part for a mixing of random rows of these members, before anything is trained.

    Raises UserError if it is not usable, and warns if the answer is another one the second time: a resumed run has a
    new aggregator, without what the old one has kept in itself.
    """
    if not _is_users(aggregator):
        return
    count, tensors = len(members), 1 if aggregator.whole or aggregator.measure == "nothing" else len(layout.names)
    rows = torch.randn(count, 2 * count, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    gram = torch.zeros(count, count, dtype=torch.float64) if aggregator.measure == "nothing" else rows @ rows.T
    tried = aggregator.model_copy(deep=True)  # whatever it keeps of random rows is no part of the run
    products = gram.expand(tensors, count, count)
    first, second = (mixing_of(tried, part, products.clone(), members, layout) for _ in range(2))
    if not all(one.weights.equal(other.weights) for one, other in zip(first.blends, second.blends, strict=False)):
        advice = "Mixing.keeps is what lasts, with one number for each member"
        what = "gave two mixings of the same rows, so a resumed run will differ from one without a break"
        log.warning("method.%s: %s: %s; %s", part, _shown(tried), what, advice)


def is_shared(aggregator: Aggregator, part: Part, members: Sequence[Member], layout: Layout) -> bool:
    """Whether somebody gets rows of others, as far as that does not depend on the rows."""
    if len(members) < 2 or aggregator.measure != "nothing":
        return len(members) > 1
    nothing = torch.zeros(1, len(members), len(members), dtype=torch.float64)
    others = 1 - torch.eye(len(members))
    mixing = mixing_of(aggregator, part, nothing, members, layout)
    return any(bool((blend.weights[..., list(blend.gets), :] * others).any()) for blend in mixing.blends)


def _is_users(aggregator: Aggregator) -> bool:
    return not type(aggregator).__module__.startswith("fedhca2.")


def _shown(aggregator: Aggregator) -> str:
    """The name of an aggregator's class, with its file or module."""
    kind = type(aggregator)
    return f"{kind.__name__} of {Path(kind.__module__).name}"


def _check_mixing(mixing: Mixing, members: int, tensors: int) -> None:
    """Raise ValueError if an answer for rows of this many members and tensors cannot be used."""
    if not isinstance(mixing, Mixing):
        raise ValueError(f"mixing(): expected a Mixing, got {type(mixing).__name__}")
    if mixing.base not in get_args(Base):
        raise ValueError(f"base: expected {', '.join(get_args(Base))}, got {mixing.base!r}")
    if mixing.keeps and (len(mixing.keeps) != members or not all(isfinite(number) for number in mixing.keeps)):
        wanted = f"{members} finite numbers, one for each member, or none"
        raise ValueError(f"keeps: expected {wanted}, got {mixing.keeps!r:.100}")
    for blend in mixing.blends:
        if not isinstance(blend, Blend):
            raise ValueError(f"blends: expected Blends, got {type(blend).__name__}")
        shape = list(check_weights(blend.weights, members).shape)
        if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != tensors):
            wanted = f"[M, {members}], or [{tensors}, M, {members}] by tensor"
            raise ValueError(f"weights: expected the shape {wanted}, got {shape}")
        if len(blend.gets) != members or not all(isinstance(row, int) and 0 <= row < shape[-2] for row in blend.gets):
            wanted = f"{members} numbers of mixed rows, from 0 to {shape[-2] - 1}"
            raise ValueError(f"gets: expected {wanted}, got {blend.gets!r:.100}")


def check_weights(weights: Tensor, members: int) -> Tensor:
    """Return weights for the rows of this many members; raises ValueError if they cannot be used.

    >>> check_weights(torch.ones(3), members=2)
    Traceback (most recent call last):
    ValueError: weights: expected 2, one for each member, got the shape [3]
    """
    if not isinstance(weights, Tensor):
        raise ValueError(f"weights: expected a torch.Tensor, got {type(weights).__name__}")
    if weights.dim() == 0 or weights.shape[-1] != members:
        raise ValueError(f"weights: expected {members}, one for each member, got the shape {list(weights.shape)}")
    if not bool(weights.isfinite().all()):
        raise ValueError(f"weights: expected finite numbers, got {weights.flatten().tolist()!r:.100}")
    return weights
