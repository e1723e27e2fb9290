"""Asking an aggregator for mixtures of rows, and checking its answers, which may come from a user's own code."""

import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from math import isfinite
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Combined, Mixing
from fedhca2.aggregation.rows import Member, Rows
from fedhca2.errors import UserError
from fedhca2.imports import explain_errors
from fedhca2.messages import Base
from fedhca2.params import Layout, Part

log = logging.getLogger("fedhca2.methods")


def mixing_of(
    aggregator: Aggregator, part: Part, products: Tensor, members: Sequence[Member], layout: Layout
) -> Mixing:
    """Ask the aggregator of a part for its mixing; raises UserError if that is not usable, or if a user's own fails."""
    with _explain(aggregator, part, "expected a Mixing"):
        mixing = aggregator.mixing(products, members, layout)
    try:
        _check_mixing(mixing, len(members), len(layout.names))
        if any(blend.hyper for blend in mixing.blends) and not aggregator.first_weights(layout):
            raise ValueError(
                "first_weights(): expected values of learned weights, since a Blend has hyper=True, got none"
            )
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
