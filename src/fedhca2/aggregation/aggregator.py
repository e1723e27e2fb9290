"""The interface of an aggregator: inner products of rows in, a small mixing matrix or a function of columns out.

It may be a user's own code, so whoever asks one for mixtures of rows gets checked answers, or a UserError.
"""

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from math import isfinite
from pathlib import Path
from typing import ClassVar, Self, get_args

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.rows import Measure, Member, Rows
from fedhca2.config import Config
from fedhca2.errors import UserError
from fedhca2.imports import explain_errors
from fedhca2.messages import Base, Kind
from fedhca2.params import Layout, Part

log = logging.getLogger("fedhca2.methods")


@dataclass(frozen=True)
class Blend:
    """Rows mixed from all members' rows: `weights` is [M, N], or [P, M, N] with one matrix per tensor of the layout.

    Member i gets mixed row `gets[i]`, multiplied by its own learned weight if `hyper` is set, or else by `scale`.
    """

    weights: Tensor
    gets: tuple[int, ...]
    hyper: bool = False
    scale: float = 1.0


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
        if self.base != "trained" and len(self.blends) == len(self.sums) == 1:
            (only,) = self.sums
            totals = only.weights.sum(dim=-1)
            are_means = bool((only.weights >= 0).all()) and torch.allclose(totals, torch.ones_like(totals))
            if only.weights.dim() == 2 and not only.hyper and only.scale == 1 and are_means:
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
        """Whether members learn weights."""
        return bool(self.first_weights(Layout(("row.weight",), ((1,),))))

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


def mixing_of(
    aggregator: Aggregator, part: Part, products: Tensor, members: Sequence[Member], layout: Layout
) -> Mixing:
    """Ask the aggregator of a part for its mixing; raises UserError if that is not usable, or if a user's own fails."""
    with _explain(aggregator, part, "expected a Mixing"):
        mixing = aggregator.mixing(products, members, layout)
    try:
        _check_mixing(mixing, len(members), len(layout.names))
        if any(blend.hyper for blend in mixing.blends) and not aggregator.first_weights(layout):
            expected = "values of learned weights, since a Blend has hyper=True"
            raise ValueError(f"first_weights(): expected {expected}, got none")
    except ValueError as error:
        raise UserError(f"method.{part}", f"{_name(aggregator)}: {error}") from error
    return mixing


def mix_rows(aggregator: Aggregator, part: Part, rows: Rows, mixing: Mixing) -> list[list[Tensor]]:
    """The rows of every blend; raises UserError if a user's own function fails, or if its answer does not fit."""
    with _explain(aggregator, part, "expected combined rows"):
        return [
            rows.mix(blend.weights) if isinstance(blend, Blend) else rows.combine(blend.function, max(blend.gets) + 1)
            for blend in mixing.blends
        ]


def renew_rows(
    aggregator: Aggregator, part: Part, mixed: Sequence[Tensor], kept: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """What members get instead of mixed rows, and the rows to keep; raises UserError if a user's own `renew` fails.

    :param kept: the rows that were kept the last time; none at first.
    """
    count, keeps = len(mixed), aggregator.keeps_rows

    def renew(block: Tensor) -> Tensor:
        return torch.cat(aggregator.renew(block[:count], block[count:]))

    rows = Rows.unnamed([*mixed, *(row.to(mixed[0].device) for row in kept)])
    with _explain(aggregator, part, f"renew(): expected {count} rows for members, and {keeps} to keep"):
        new_rows = rows.combine(renew, count + keeps)
    return new_rows[:count], new_rows[count:]


def try_aggregator(aggregator: Aggregator, part: Part, members: Sequence[Member], layout: Layout) -> None:
    """Ask a user's own aggregator of a part for mixtures of random rows of these members, before anything is trained.

    Raises UserError if they are not usable, and warns if they are others the second time: a resumed run has a new
    aggregator, without what the old one has kept in itself.
    """
    if not _is_users(aggregator):
        return
    tried = aggregator.model_copy(deep=True)  # whatever it keeps of random rows is no part of the run
    first, second = (_try(tried, part, members, layout) for _ in range(2))
    if not all(map(torch.equal, first, second)):
        advice = "Mixing.keeps is what lasts, with one number for each member, and rows that `renew` keeps"
        what = "gave two mixtures of the same rows, so a resumed run will differ from one without a break"
        log.warning("method.%s: %s: %s; %s", part, _name(tried), what, advice)


def _try(aggregator: Aggregator, part: Part, members: Sequence[Member], layout: Layout) -> list[Tensor]:
    """The weights of blends of random rows, and the rows that functions make, after all checks."""
    random = torch.Generator().manual_seed(0)
    rows = Rows.unnamed(list(torch.randn(len(members), 2 * len(members), generator=random)))
    with _explain(aggregator, part, "products(): expected a Tensor"):
        products = aggregator.products(rows, 0).clone()
    if aggregator.measure != "nothing" and not aggregator.whole:
        products = products.expand(len(layout.names), -1, -1)
    mixing = mixing_of(aggregator, part, products, members, layout)
    new_rows = _make_rows(aggregator, part, rows, mixing)
    half = _make_rows(aggregator, part, Rows.unnamed([row[: len(members)] for row in rows.data]), mixing)
    if not new_rows.isfinite().all():
        raise UserError(f"method.{part}", f"{_name(aggregator)}: expected finite rows, got NaN or infinite values")
    if not torch.allclose(new_rows[:, : len(members)], half, rtol=1e-5):
        expected = "expected every column to be made from itself alone, got others with half of the columns"
        raise UserError(f"method.{part}", f"{_name(aggregator)}: {expected}")
    return [*(blend.weights for blend in mixing.sums), new_rows]


def _make_rows(aggregator: Aggregator, part: Part, rows: Rows, mixing: Mixing) -> Tensor:
    """The rows that functions of an aggregator make in two rounds, [M, n]; none if it has no functions."""
    functions = Mixing(mixing.base, tuple(blend for blend in mixing.blends if isinstance(blend, Combined)))
    new_rows = [row for combined in mix_rows(aggregator, part, rows, functions) for row in combined]
    kept: Sequence[Tensor] = ()
    for _ in range(2 if aggregator.keeps_rows else 0):
        new_rows, kept = renew_rows(aggregator, part, new_rows or rows.data[:1], kept)
    return torch.stack([*new_rows, *kept]) if new_rows else rows.store.data[0].new_zeros(0, rows.layout.numel)


def is_shared(aggregator: Aggregator, part: Part, members: Sequence[Member], layout: Layout) -> bool:
    """Whether somebody gets rows of others, as far as that does not depend on the rows."""
    if len(members) < 2 or aggregator.measure != "nothing":
        return len(members) > 1
    nothing = torch.zeros(1, len(members), len(members), dtype=torch.float64)
    others = 1 - torch.eye(len(members))
    mixing = mixing_of(aggregator, part, nothing, members, layout)
    weighted = any(bool((blend.weights[..., list(blend.gets), :] * others).any()) for blend in mixing.sums)
    return weighted or len(mixing.sums) < len(mixing.blends)


def _explain(aggregator: Aggregator, part: Part, expected: str) -> AbstractContextManager[None]:
    """Raise whatever a user's own aggregator raises as a UserError of one line."""
    if not _is_users(aggregator):
        return nullcontext()
    return explain_errors(f"method.{part}", f"{_name(aggregator)}: {expected}")


def _is_users(aggregator: Aggregator) -> bool:
    return not type(aggregator).__module__.startswith("fedhca2.")


def _name(aggregator: Aggregator) -> str:
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
        expected = f"{members} finite numbers, one for each member, or none"
        raise ValueError(f"keeps: expected {expected}, got {mixing.keeps!r:.100}")
    for blend in mixing.blends:
        if not isinstance(blend, Blend | Combined):
            raise ValueError(f"blends: expected Blends, got {type(blend).__name__}")
        rows = members
        if isinstance(blend, Blend):
            shape = list(check_weights(blend.weights, members).shape)
            if len(shape) not in (2, 3) or (len(shape) == 3 and shape[0] != tensors):
                expected = f"[M, {members}], or [{tensors}, M, {members}] by tensor"
                raise ValueError(f"weights: expected the shape {expected}, got {shape}")
            rows = shape[-2]
        if len(blend.gets) != members or not all(isinstance(row, int) and 0 <= row < rows for row in blend.gets):
            expected = f"{members} numbers of mixed rows, from 0 to {rows - 1}"
            raise ValueError(f"gets: expected {expected}, got {blend.gets!r:.100}")
        if not isfinite(blend.scale):
            raise ValueError(f"scale: expected a finite number, got {blend.scale!r:.100}")


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
