"""Inner products and mixtures of rows in a GPU's memory, compiled by Triton, in float64: every value is read once.

Rows come as addresses of their first value, so that no stack of them is ever made. Whoever calls keeps the rows alive.
Chosen for GPUs whose tensor cores multiply float64, which then takes no longer than to read the rows.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

PROGRAMS = 1 << 11  # that share the columns, for a GPU to have something to do everywhere
LEAST = 1 << 10  # columns for each of them
COLUMNS = 32  # whose products are summed at a time
MIXED_COLUMNS, GROUP = 512, 4  # columns, and rows of them, that are added at a time


@triton.jit  # type: ignore[untyped-decorator]
def _values(pointers, first, columns, stop, differences: tl.constexpr):  # type: ignore[no-untyped-def]
    there = (columns < stop)[None, :]
    values = tl.load(pointers[:, None] + columns[None, :], mask=there, other=0).to(tl.float64)
    if differences:
        values -= tl.load(first + columns[None, :], mask=there, other=0).to(tl.float64)
    return values


@triton.jit  # type: ignore[untyped-decorator]
def _gram(  # type: ignore[no-untyped-def]
    starts, row, length, span, sums, size, differences: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    program, i, j = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if j > i:
        return
    upper, lower = i * ROWS + tl.arange(0, ROWS), j * ROWS + tl.arange(0, ROWS)
    first = tl.load(starts).to(row.dtype)
    p, q = tl.load(starts + upper).to(row.dtype), tl.load(starts + lower).to(row.dtype)
    total = tl.zeros((ROWS, ROWS), tl.float64)
    stop = tl.minimum((program + 1) * span, length)
    for start in range(program * span, stop, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        a = _values(p, first, columns, stop, differences)
        b = _values(q, first, columns, stop, differences)
        total = tl.dot(a, tl.trans(b), total, out_dtype=tl.float64)
    tl.store(sums + program * size * size + upper[:, None] * size + lower[None, :], total)


@triton.jit  # type: ignore[untyped-decorator]
def _mix(  # type: ignore[no-untyped-def]
    starts, row, weights, targets, length, rows, mixed, GROUP: tl.constexpr, COLUMNS: tl.constexpr
):
    columns = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    inside = columns < length
    for m in range(mixed):
        total = tl.zeros((COLUMNS,), tl.float64)
        for start in range(0, rows, GROUP):
            group = start + tl.arange(0, GROUP)
            weight = tl.load(weights + m * rows + group, mask=group < rows, other=0)
            pointers = tl.load(starts + group, mask=group < rows, other=0).to(row.dtype)
            there = (group < rows)[:, None] & inside[None, :]
            values = tl.load(pointers[:, None] + columns[None, :], mask=there, other=0).to(tl.float64)
            total += tl.sum(weight[:, None] * values, axis=0)
        target = tl.load(targets + m).to(tl.pointer_type(tl.float32))
        tl.store(target + columns, total.to(tl.float32), mask=inside)


def gram(starts: Tensor, row: Tensor, length: int, *, differences: bool) -> Tensor:
    """Inner products of rows of a length, or of their differences to the first, [N, N]: on and below the diagonal.

    Rows are float32 or float64, as `row` is.
    """
    rows = next((size for size in (16, 32) if len(starts) <= size), 64)
    blocks = -(-len(starts) // rows)
    padded = starts[-1:].repeat(blocks * rows)
    padded[: len(starts)] = starts
    span = max(LEAST, -(-length // (COLUMNS * PROGRAMS)) * COLUMNS)
    programs = -(-length // span)
    sums = torch.empty(programs, blocks * rows, blocks * rows, dtype=torch.float64, device=starts.device)
    options = {"ROWS": rows, "COLUMNS": COLUMNS, "num_warps": rows // 16, "num_stages": 4}
    _gram[programs, blocks, blocks](padded, row, length, span, sums, blocks * rows, differences, **options)
    return sums.sum(dim=0)[: len(starts), : len(starts)]


def mix(starts: Tensor, row: Tensor, weights: Tensor, targets: Tensor, length: int) -> None:
    """Write Σ_j weights[m, j]·row_j to the float32 rows at `targets`, in float64 but for the last rounding.

    Weights are [M, N] in float64, and rows float32 or float64, as `row` is.
    """
    options = {"GROUP": GROUP, "COLUMNS": MIXED_COLUMNS, "num_warps": 4}
    grid = (-(-length // MIXED_COLUMNS),)
    _mix[grid](starts, row, weights, targets, length, len(starts), len(targets), **options)
