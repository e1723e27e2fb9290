"""Inner products, mixtures and projections of rows in main memory or in files, compiled by numba.

Plain torch takes two to five times as long here (docs/decisions/0007). Kernels get rows as addresses of their first
values, so rows are never stacked, and the type of these values, np.float32 or np.float64.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.aggregation.rows import MappedRow, PlainRows

COLUMNS = 1024  # columns whose values stay in the fastest cache while all pairs of rows, or all mixtures, use them
# This many rows can be multiplied in float64 in the time it takes to read them. With more rows, products are summed
# over COLUMNS in float32, and these sums in float64.
FEW = 12

Addresses = NDArray[np.int64]
Piece = tuple[int, int, int]  # the number of a tensor, and some of its columns: from, to
Block = tuple[int, int, Addresses, type]  # the first column, the number of columns, the start of each row, their type
T = TypeVar("T")
U = TypeVar("U")


@intrinsic
def _pointer(context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.inttoptr(values[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(cache=True, nogil=True)
def _values(row, start, stop, kind):  # type: ignore[no-untyped-def]
    return carray(_pointer(row), (stop,), kind)[start:]  # type: ignore[call-arg]


# Sums may be taken in any order, and so in vector registers; NaN and infinity are kept.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _tile(p0, p1, p2, q0, q1, q2, exact):  # type: ignore[no-untyped-def]
    """Products of three rows by three: nine sums and six values fit the registers."""
    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = exact(0)
    for k in range(len(p0)):
        x0, x1, x2 = exact(p0[k]), exact(p1[k]), exact(p2[k])
        y0, y1, y2 = exact(q0[k]), exact(q1[k]), exact(q2[k])
        s00, s01, s02 = s00 + x0 * y0, s01 + x0 * y1, s02 + x0 * y2
        s10, s11, s12 = s10 + x1 * y0, s11 + x1 * y1, s12 + x1 * y2
        s20, s21, s22 = s20 + x2 * y0, s21 + x2 * y1, s22 + x2 * y2
    return s00, s01, s02, s10, s11, s12, s20, s21, s22


@njit(cache=True, nogil=True)
def _add_products(rows, columns, kind, exact, products):  # type: ignore[no-untyped-def]
    """Add the inner products of rows to the lower triangle of `products`, [N, N] in float64; N is a multiple of 3.

    Products are summed in the type `exact` over COLUMNS of them, and these sums in float64.
    """
    for start in range(0, columns, COLUMNS):
        stop = min(start + COLUMNS, columns)
        for i in range(0, len(rows), 3):
            p0 = _values(rows[i], start, stop, kind)
            p1 = _values(rows[i + 1], start, stop, kind)
            p2 = _values(rows[i + 2], start, stop, kind)
            for j in range(0, i + 3, 3):
                q0 = _values(rows[j], start, stop, kind)
                q1 = _values(rows[j + 1], start, stop, kind)
                q2 = _values(rows[j + 2], start, stop, kind)
                sums = _tile(p0, p1, p2, q0, q1, q2, exact)
                for k in range(9):
                    products[i + k // 3, j + k % 3] += sums[k]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _square(values):  # type: ignore[no-untyped-def]
    total = 0.0
    for k in range(len(values)):
        total += np.float64(values[k]) * np.float64(values[k])
    return total


@njit(cache=True, nogil=True)
def _add_square(row, columns, kind, total):  # type: ignore[no-untyped-def]
    """Add the squared length of a row to a total, COLUMNS at a time in order: the same in one block or several."""
    for start in range(0, columns, COLUMNS):
        total += _square(_values(row, start, min(start + COLUMNS, columns), kind))
    return total


# Here sums are in a fixed order. A product and its sum are rounded together, in a vector register or alone.
@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_four(w, p0, p1, p2, p3, totals):  # type: ignore[no-untyped-def]
    w0, w1, w2, w3 = w[0], w[1], w[2], w[3]
    for k in range(len(totals)):
        totals[k] = totals[k] + w0 * p0[k] + w1 * p1[k] + w2 * p2[k] + w3 * p3[k]


@njit(cache=True, nogil=True)
def _write_mixed(rows, weights, columns, kind, mixed):  # type: ignore[no-untyped-def]
    """Write Σ_j weights[m, j]·row_j to the float32 rows `mixed`, [M] of them, from weights [M, N]; 4 divides N.

    Everything is float64 and in a fixed order except for the last rounding, so a value's bits depend only on its own
    column. Four rows without weight are not read. A single mixture is read in longer stretches: processors fetch ahead.
    """
    stretch = 16 * COLUMNS if len(mixed) == 1 else COLUMNS
    room = np.empty(stretch)
    for start in range(0, columns, stretch):
        stop = min(start + stretch, columns)
        totals = room[: stop - start]
        for m in range(len(mixed)):
            totals[:] = 0
            for j in range(0, len(rows), 4):
                if weights[m, j : j + 4].any():
                    p0 = _values(rows[j], start, stop, kind)
                    p1 = _values(rows[j + 1], start, stop, kind)
                    p2 = _values(rows[j + 2], start, stop, kind)
                    p3 = _values(rows[j + 3], start, stop, kind)
                    _add_four(weights[m, j : j + 4], p0, p1, p2, p3, totals)
            _values(mixed[m], start, stop, np.float32)[:] = totals


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _add_signed(values, signs, sums):  # type: ignore[no-untyped-def]
    """Add values with their signs to sums; returns the squared length of the values."""
    total = 0.0
    for k in range(len(signs)):
        sums[k] += np.float32(signs[k]) * np.float32(values[k])
        total += np.float64(values[k]) * np.float64(values[k])
    return total


@njit(cache=True, nogil=True)
def _fold(row, columns, kind, first, signs, shifts, sums, total):  # type: ignore[no-untyped-def]
    """Add the columns of a row from `first` on to its projection `sums`, and their squared length to a total."""
    size, column = len(sums), first
    while column < first + columns:
        offset = column % size
        target = (offset + shifts[column // size]) % size
        count = min(size - offset, size - target, first + columns - column)
        values = _values(row, column - first, column - first + count, kind)
        total += _add_signed(values, signs[column : column + count], sums[target : target + count])
        column += count
    return total


class CpuRows(PlainRows):
    """Contiguous float32 rows in memory are read in place; those in files, others, and differences in small copies.

    Columns are cut into pieces independently of the number of threads, and pieces are summed in order, so the result is
    the same, bit for bit, for any number of threads.
    """

    def __init__(self, data: Sequence[Tensor], chunk: int | None = None) -> None:
        super().__init__(data, chunk or 1 << 19)
        self.in_place = all(row.dtype == torch.float32 and row.is_contiguous() for row in data) and not self.mapped
        self.starts = _addresses(data)

    def gram(self, edges: Sequence[int], differences: bool) -> Tensor:
        """Inner products between edges, [T, N, N], below the diagonal; with many rows, short sums are in float32."""
        exact = differences or len(self.data) <= FEW  # differences may be small relative to the rows
        products = self._gram(edges, differences, exact)
        squares = products.diagonal(dim1=1, dim2=2)
        holds_digits = products.isfinite().all() and (squares >= 1e-30).all()  # within the range of float32
        return products if exact or holds_digits else self._gram(edges, differences, exact=True)

    def _gram(self, edges: Sequence[int], differences: bool, exact: bool) -> Tensor:
        def measure(piece: Piece) -> NDArray[np.float64]:
            products = np.zeros((size, size))
            for _, columns, rows, kind in self._blocks(piece, differences):
                _add_products(_pad(rows, size), columns, kind, np.float64 if exact else kind, products)
            return products

        size = -(-len(self.data) // 3) * 3
        total, pieces = np.zeros((len(edges) - 1, size, size)), self._pieces(edges)
        for (tensor, _, _), products in zip(pieces, _in_threads(measure, pieces), strict=True):
            total[tensor] += products
        return torch.from_numpy(total[:, : len(self.data), : len(self.data)])

    def squares(self, starts: Sequence[Tensor] = ()) -> Tensor:
        """Squared lengths of the rows, or of their differences to `starts`, [N]."""
        alone = [CpuRows([row], self.chunk) for row in self.data]

        def measure(piece: Piece) -> list[float]:
            if starts:
                return [_squared_distance(row, start, piece) for row, start in zip(self.data, starts, strict=True)]
            return [row._square(piece) for row in alone]

        pieces = self._pieces((0, len(self.data[0])))
        return torch.tensor(list(_in_threads(measure, pieces)), dtype=torch.float64).view(-1, len(alone)).sum(dim=0)

    def _square(self, piece: Piece) -> float:
        """Squared length of a piece of the first row."""
        total = 0.0
        for _, columns, rows, kind in self._blocks(piece):
            total = _add_square(rows[0], columns, kind, total)
        return total

    def mix(self, weights: Tensor, edges: Sequence[int], mixed: Sequence[Tensor]) -> None:
        """Write the rows `weights` [T, M, N] @ rows."""

        def write(piece: Piece) -> None:
            for first, columns, rows, kind in self._blocks(piece):
                _write_mixed(_pad(rows, size), matrices[piece[0]], columns, kind, targets + 4 * first)

        size = -(-len(self.data) // 4) * 4
        matrices = np.zeros((*weights.shape[:2], size))
        matrices[..., : len(self.data)] = weights.numpy()
        targets = _addresses(mixed)
        list(_in_threads(write, self._pieces(edges)))

    def sketch(self, size: int, signs: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """Project the rows, one per thread, and measure their squared lengths."""
        how, sketches = (signs.numpy(), shifts.numpy()), np.zeros((len(self.data), size), np.float32)

        def project(number: int) -> float:
            square = 0.0
            for first, columns, rows, kind in CpuRows([self.data[number]])._blocks((0, 0, len(self.data[0]))):
                square = _fold(rows[0], columns, kind, first, *how, sketches[number], square)
            return square

        squares = list(_in_threads(project, range(len(self.data))))
        return torch.from_numpy(sketches), torch.tensor(squares, dtype=torch.float64)

    def _pieces(self, edges: Sequence[int]) -> list[Piece]:
        """Cut tensors into pieces for threads."""
        return [
            (tensor, first, min(first + self.chunk, stop))
            for tensor, (start, stop) in enumerate(pairwise(edges))
            for first in range(start, stop, self.chunk)
        ]

    @property
    def narrow(self) -> int:
        """As many columns as fit a fast cache; getting the pages of a larger copy takes longer than copying."""
        return max(1 << 15, min(1 << 16, (1 << 19) // len(self.data) // COLUMNS * COLUMNS))

    def _blocks(self, piece: Piece, differences: bool = False) -> Iterator[Block]:
        """A piece of all rows in one or several blocks."""
        _, start, stop = piece
        if self.in_place and not differences:
            yield start, stop - start, self.starts + 4 * start, np.float32
            return
        wide = differences or self.dtype == torch.float64
        for first, block in self.blocks(start, stop, self.narrow, torch.float64 if wide else torch.float32):
            if differences:
                block -= block[0].clone()
            yield first, block.shape[1], _addresses(block.unbind()), np.float64 if wide else np.float32


def _in_threads(work: Callable[[U], T], items: Iterable[U]) -> Iterator[T]:
    """Do the work on every item, in order, on as many threads as torch may use."""
    if torch.get_num_threads() == 1:
        yield from map(work, items)
        return
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        yield from pool.map(work, items)


def _squared_distance(row: Tensor, start: Tensor, piece: Piece) -> float:
    _, a, b = piece
    distance = torch.linalg.vector_norm(row[a:b].double() - start[a:b].to("cpu", torch.float64))
    if isinstance(row, MappedRow):
        row.release()
    return float(distance) ** 2


def _addresses(rows: Sequence[Tensor]) -> Addresses:
    return np.array([row.data_ptr() for row in rows], dtype=np.int64)


def _pad(rows: Addresses, size: int) -> Addresses:
    """Repeat the last row up to a size."""
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows))])
