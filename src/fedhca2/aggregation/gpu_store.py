"""Rows on a GPU, and what is computed from them in float64, compiled by Triton.

Kernels get rows as addresses of their first values, so rows are never stacked. The store keeps the rows alive. The
kernels suit GPUs whose tensor cores multiply float64, which then takes no longer than reading the rows.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise

import torch
import triton
import triton.language as tl
from torch import Tensor

from fedhca2.aggregation.rows import Projection

PROGRAMS = 1 << 11  # that share the work on a tensor, so that the whole GPU is busy
LEAST = 1 << 10  # columns per program
COLUMNS = 32  # columns whose products are summed at a time
MIXED_COLUMNS, GROUP = 512, 4  # columns, and rows of them, that are added at a time
VALUES = 1 << 28  # of all rows together that are copied at a time if rows cannot be read in place


@triton.jit  # type: ignore[untyped-decorator]
def _values(pointers, first, columns, stop, differences: tl.constexpr):  # type: ignore[no-untyped-def]
    there = (columns < stop)[None, :]
    values = tl.load(pointers[:, None] + columns[None, :], mask=there, other=0).to(tl.float64)
    if differences:
        values -= tl.load(first + columns[None, :], mask=there, other=0).to(tl.float64)
    return values


@triton.jit  # type: ignore[untyped-decorator]
def _gram_kernel(  # type: ignore[no-untyped-def]
    starts, row, spans, sums, size, differences: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    program, i, j = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    if j > i:
        return
    upper, lower = i * ROWS + tl.arange(0, ROWS), j * ROWS + tl.arange(0, ROWS)
    first = tl.load(starts).to(row.dtype)
    p, q = tl.load(starts + upper).to(row.dtype), tl.load(starts + lower).to(row.dtype)
    total = tl.zeros((ROWS, ROWS), tl.float64)
    start, stop = tl.load(spans + 3 * program), tl.load(spans + 3 * program + 1)
    for column in range(start, stop, COLUMNS):
        columns = column + tl.arange(0, COLUMNS)
        a = _values(p, first, columns, stop, differences)
        b = _values(q, first, columns, stop, differences)
        total = tl.dot(a, tl.trans(b), total, out_dtype=tl.float64)
    tl.store(sums + program * size * size + upper[:, None] * size + lower[None, :], total)


@triton.jit  # type: ignore[untyped-decorator]
def _mix_kernel(  # type: ignore[no-untyped-def]
    starts, row, spans, weights, targets, rows, mixed, GROUP: tl.constexpr, COLUMNS: tl.constexpr
):
    span = spans + 3 * tl.program_id(0)
    start, stop, tensor = tl.load(span), tl.load(span + 1), tl.load(span + 2)
    for m in range(mixed):
        target = tl.load(targets + m).to(tl.pointer_type(tl.float32))
        for column in range(start, stop, COLUMNS):
            columns = column + tl.arange(0, COLUMNS)
            total = tl.zeros((COLUMNS,), tl.float64)
            for j in range(0, rows, GROUP):
                group = j + tl.arange(0, GROUP)
                weight = tl.load(weights + (tensor * mixed + m) * rows + group, mask=group < rows, other=0)
                pointers = tl.load(starts + group, mask=group < rows, other=0).to(row.dtype)
                there = (group < rows)[:, None] & (columns < stop)[None, :]
                values = tl.load(pointers[:, None] + columns[None, :], mask=there, other=0).to(tl.float64)
                total += tl.sum(weight[:, None] * values, axis=0)
            tl.store(target + columns, total.to(tl.float32), mask=columns < stop)


def _gram(starts: Tensor, row: Tensor, edges: Sequence[int], *, differences: bool) -> Tensor:
    """Inner products of rows, or of their differences to the first, on and below the diagonal: [T, N, N].

    One matrix for the columns between each edge and the next. Rows are float32 or float64, like `row`.
    """
    rows = next((size for size in (16, 32) if len(starts) <= size), 64)
    blocks = -(-len(starts) // rows)
    padded = torch.cat([starts, starts[-1:].expand(blocks * rows - len(starts))])
    spans = _spans(edges, max(1, PROGRAMS // blocks**2))
    sums = torch.empty(len(spans), blocks * rows, blocks * rows, dtype=torch.float64, device=starts.device)
    options = {"ROWS": rows, "COLUMNS": COLUMNS, "num_warps": rows // 16, "num_stages": 4}
    grid = (len(spans), blocks, blocks)
    _gram_kernel[grid](padded, row, spans.to(starts.device), sums, blocks * rows, differences, **options)
    counts = spans[:, 2].bincount(minlength=len(edges) - 1).tolist()
    return torch.stack([part.sum(dim=0) for part in torch.split(sums[:, : len(starts), : len(starts)], counts)])


def _mix(starts: Tensor, row: Tensor, weights: Tensor, edges: Sequence[int], targets: Tensor) -> None:
    """Write Σ_j weights[t, m, j]·row_j to the float32 rows at `targets`, in float64 except for the last rounding.

    Weights are [T, M, N] in float64, t for the columns between an edge and the next, and rows as for `gram`.
    """
    spans = _spans(edges, PROGRAMS).to(starts.device)
    options = {"GROUP": GROUP, "COLUMNS": MIXED_COLUMNS, "num_warps": 4}
    _mix_kernel[len(spans),](starts, row, spans, weights, targets, len(starts), len(targets), **options)


def _spans(edges: Sequence[int], most: int) -> Tensor:
    """The columns (from, to) and the edge of each program, at most `most` programs between two edges: [programs, 3]."""
    spans = []
    for tensor, (start, stop) in enumerate(pairwise(edges)):
        length = max(1, -(-(stop - start) // (LEAST * most))) * LEAST
        begins = torch.arange(start, stop, length)
        spans.append(torch.stack([begins, (begins + length).clamp(max=stop), torch.full_like(begins, tensor)], dim=1))
    return torch.cat(spans)


class GpuStore:
    """float32 or float64 rows are read in place; others, or those of several GPUs, are copied part by part."""

    def __init__(self, data: Sequence[Tensor], chunk: int | None = None) -> None:
        self.data = data
        self.device = data[0].device
        self.kind = torch.float64 if any(row.dtype == torch.float64 for row in data) else torch.float32
        self.chunk = chunk or max(1, VALUES // len(data))

    def gram(self, edges: Sequence[int], differences: bool) -> Tensor:
        """Inner products of the columns between each edge and the next, [T, N, N], in float64."""
        size = len(self.data)
        total = torch.zeros(len(edges) - 1, size, size, dtype=torch.float64, device=self.device)
        for _, inside, starts, row in self._parts(edges):
            total += _gram(starts, row, inside, differences=differences)
        return total

    def squares(self, starts: Sequence[Tensor] = ()) -> Tensor:
        """Squared lengths of the rows, or of their differences to `starts`, [N]."""
        norms = []
        for number, row in enumerate(self.data):
            measured = row.float() - starts[number].to(row.device) if starts else row
            norms.append(torch.linalg.vector_norm(measured, dtype=torch.float64))
        return torch.stack([norm.to(self.device) for norm in norms]).square()

    def mix(self, weights: Tensor, edges: Sequence[int], mixed: Sequence[Tensor]) -> None:
        """Write the rows `weights` [T, M, N] @ rows, in float64 except for the last rounding."""
        weights, targets = weights.to(self.device).contiguous(), _addresses(mixed)
        for begin, inside, starts, row in self._parts(edges):
            _mix(starts, row, weights, inside, targets + begin * mixed[0].itemsize)

    def sketch(self, projection: Projection) -> tuple[Tensor, Tensor]:
        """Project the rows, and measure their squared lengths."""
        size, columns = projection.size, len(self.data[0])
        first = torch.arange(0, columns, size, device=self.device)[:, None]
        places = torch.arange(size, device=self.device) - projection.shifts.to(self.device)[:, None]
        sources = (first + places % size).int()  # of each sum, one column from each block
        there = sources < columns
        sources = sources.where(there, torch.zeros_like(sources)).flatten()
        signs = projection.signs.to(self.device)[sources].view_as(there) * there
        folded = [(row.to(self.device, torch.float32)[sources].view_as(there) * signs).sum(dim=0) for row in self.data]
        return torch.stack(folded), self.squares()

    def _parts(self, edges: Sequence[int]) -> Iterator[tuple[int, Sequence[int], Tensor, Tensor]]:
        """All columns in one or several parts: first column, edges inside, start of each row, and one of the rows."""
        if all(row.dtype == self.kind and row.device == self.device and row.is_contiguous() for row in self.data):
            yield 0, edges, _addresses(self.data), self.data[0]
            return
        for begin in range(0, edges[-1], self.chunk):
            end = min(begin + self.chunk, edges[-1])
            copies = [row[begin:end].to(self.device, self.kind).contiguous() for row in self.data]
            yield begin, [min(max(edge, begin), end) - begin for edge in edges], _addresses(copies), copies[0]


def _addresses(rows: Sequence[Tensor]) -> Tensor:
    return torch.tensor([row.data_ptr() for row in rows], device=rows[0].device)
