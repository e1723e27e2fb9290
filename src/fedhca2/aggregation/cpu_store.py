"""Rows in main memory or mapped from files, and what numba-compiled kernels compute from them in one pass.

Kernels get rows as addresses of their first values, so rows are never stacked. The store keeps the rows alive.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numba import carray, njit, types  # type: ignore[attr-defined]
from numba.extending import intrinsic
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.aggregation.rows import MappedRow, Projection, own_pages

TILE = 3  # rows by rows whose products are summed at a time: nine sums and six values fit the registers
COLUMNS = 1024  # columns whose values stay in the fastest cache while all pairs of rows use them
GROUP = 8  # rows that are added at a time
STRETCH = 16384  # columns of a row that are read in one go if each is needed once: processors fetch long runs ahead
FOLDED = 4  # rows that are projected at a time, so that signs are read and converted once for all of them
# This many rows can be multiplied in float64 in the time it takes to read them. With more rows, products are summed
# over a thousand columns in float32, and these sums in float64.
FEW = 12
SMALLEST = 1e-30  # the smallest squared length whose digits float32 holds
CHUNK = 1 << 19  # columns that a thread works on at a time
ROOM = 1 << 14  # columns that are copied at a time if rows cannot be read in place, or more if there are few rows:
EXPECTED = 1 << 19  # columns of a row in a file that are fetched at a time
COPIED = 1 << 18  # this many values fit into a fast cache

Addresses = NDArray[np.int64]
Piece = tuple[int, int, int]  # the edge before it, and its columns: from, to
T = TypeVar("T")


@intrinsic
def _pointer(context, address):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, values):  # type: ignore[no-untyped-def]
        return builder.inttoptr(values[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


@njit(cache=True, nogil=True)
def _values(row, start, stop, stored):  # type: ignore[no-untyped-def]
    return carray(_pointer(row), (stop,), stored)[start:]  # type: ignore[call-arg]


# Sums may be taken in any order, and so in vector registers; NaN and infinity are kept.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _tile(p0, p1, p2, q0, q1, q2, exact):  # type: ignore[no-untyped-def]
    s00 = s01 = s02 = s10 = s11 = s12 = s20 = s21 = s22 = exact(0)
    for k in range(len(p0)):
        x0, x1, x2 = exact(p0[k]), exact(p1[k]), exact(p2[k])
        y0, y1, y2 = exact(q0[k]), exact(q1[k]), exact(q2[k])
        s00, s01, s02 = s00 + x0 * y0, s01 + x0 * y1, s02 + x0 * y2
        s10, s11, s12 = s10 + x1 * y0, s11 + x1 * y1, s12 + x1 * y2
        s20, s21, s22 = s20 + x2 * y0, s21 + x2 * y1, s22 + x2 * y2
    return s00, s01, s02, s10, s11, s12, s20, s21, s22


@njit(cache=True, nogil=True)
def _add_products(rows, columns, stored, exact, products):  # type: ignore[no-untyped-def]
    """Add the inner products of rows to the lower triangle of `products`, [N, N] in float64.

    N is a multiple of TILE. The rows are `stored` as float32 or float64; products are summed in the type `exact` over
    COLUMNS of them, and these sums in float64.
    """
    for start in range(0, columns, COLUMNS):
        stop = min(start + COLUMNS, columns)
        for i in range(0, len(rows), TILE):
            p0 = _values(rows[i], start, stop, stored)
            p1 = _values(rows[i + 1], start, stop, stored)
            p2 = _values(rows[i + 2], start, stop, stored)
            for j in range(0, i + TILE, TILE):
                q0 = _values(rows[j], start, stop, stored)
                q1 = _values(rows[j + 1], start, stop, stored)
                q2 = _values(rows[j + 2], start, stop, stored)
                sums = _tile(p0, p1, p2, q0, q1, q2, exact)
                for k in range(TILE * TILE):
                    products[i + k // TILE, j + k % TILE] += sums[k]


@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _squared_length(row, columns, stored):  # type: ignore[no-untyped-def]
    """Squared length of a row, in float64."""
    total = 0.0
    for value in _values(row, 0, columns, stored):
        total += np.float64(value) * np.float64(value)
    return total


@njit(cache=True, nogil=True)
def _four(rows, first, start, stop, stored):  # type: ignore[no-untyped-def]
    """Values of four rows."""
    return (
        _values(rows[first], start, stop, stored),
        _values(rows[first + 1], start, stop, stored),
        _values(rows[first + 2], start, stop, stored),
        _values(rows[first + 3], start, stop, stored),
    )


# Here sums are in a fixed order. A product and its sum are rounded together, in a vector register or alone.
@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_to_one(w, first, second, totals):  # type: ignore[no-untyped-def]
    """Add a mixture of eight rows to one row of totals."""
    w0, w1, w2, w3, w4, w5, w6, w7 = w[0], w[1], w[2], w[3], w[4], w[5], w[6], w[7]
    (p0, p1, p2, p3), (p4, p5, p6, p7) = first, second
    for k in range(len(totals)):
        total = totals[k] + w0 * p0[k] + w1 * p1[k] + w2 * p2[k] + w3 * p3[k]
        totals[k] = total + w4 * p4[k] + w5 * p5[k] + w6 * p6[k] + w7 * p7[k]


@njit(cache=True, nogil=True, fastmath={"contract"})
def _add_to_four(w, rows, totals):  # type: ignore[no-untyped-def]
    """Add mixtures of four rows to four rows of totals: a value is read and converted once for all of them."""
    w00, w01, w02, w03 = w[0, 0], w[0, 1], w[0, 2], w[0, 3]
    w10, w11, w12, w13 = w[1, 0], w[1, 1], w[1, 2], w[1, 3]
    w20, w21, w22, w23 = w[2, 0], w[2, 1], w[2, 2], w[2, 3]
    w30, w31, w32, w33 = w[3, 0], w[3, 1], w[3, 2], w[3, 3]
    (p0, p1, p2, p3), (t0, t1, t2, t3) = rows, totals
    for k in range(len(p0)):
        x0, x1, x2, x3 = np.float64(p0[k]), np.float64(p1[k]), np.float64(p2[k]), np.float64(p3[k])
        t0[k] = t0[k] + w00 * x0 + w01 * x1 + w02 * x2 + w03 * x3
        t1[k] = t1[k] + w10 * x0 + w11 * x1 + w12 * x2 + w13 * x3
        t2[k] = t2[k] + w20 * x0 + w21 * x1 + w22 * x2 + w23 * x3
        t3[k] = t3[k] + w30 * x0 + w31 * x1 + w32 * x2 + w33 * x3


@njit(cache=True, nogil=True)
def _mix_one(rows, weights, start, stop, stored, totals):  # type: ignore[no-untyped-def]
    """Sum the columns of one mixture, from its weights [N]; rows without weight are not read."""
    totals[:] = 0
    for j in range(0, len(rows), GROUP):
        if weights[j : j + GROUP].any():
            first, second = _four(rows, j, start, stop, stored), _four(rows, j + 4, start, stop, stored)
            _add_to_one(weights[j : j + GROUP], first, second, totals)


@njit(cache=True, nogil=True)
def _mix_four(rows, weights, start, stop, stored, totals):  # type: ignore[no-untyped-def]
    """Sum the columns of four mixtures, from their weights [4, N]."""
    n = stop - start
    sums = totals[0, :n], totals[1, :n], totals[2, :n], totals[3, :n]  # known to be contiguous when this is compiled
    totals[:, :n] = 0
    for j in range(0, len(rows), 4):
        _add_to_four(weights[:, j : j + 4], _four(rows, j, start, stop, stored), sums)


@njit(cache=True, nogil=True)
def _write_mixed(rows, weights, dense, columns, stored, mixed):  # type: ignore[no-untyped-def]
    """Write Σ_j weights[m, j]·row_j to the float32 rows `mixed`, [M] of them, from weights [M, N] in float64.

    N is a multiple of GROUP. Weights are `dense` if hardly any is zero. Everything is float64 and in a fixed order
    except for the last rounding, so a value's bits depend only on its own column.
    """
    stretch = STRETCH if len(mixed) == 1 else COLUMNS
    totals = np.empty((4, stretch))
    for start in range(0, columns, stretch):
        stop = min(start + stretch, columns)
        m = 0
        while m < len(mixed):
            count = 4 if dense and m + 4 <= len(mixed) else 1
            if count == 4:
                _mix_four(rows, weights[m : m + 4], start, stop, stored, totals)
            else:
                _mix_one(rows, weights[m], start, stop, stored, totals[0, : stop - start])
            for i in range(count):
                _values(mixed[m + i], start, stop, np.float32)[:] = totals[i, : stop - start]
            m += count


# Here sums are in a fixed order too: a value is added to its sum before the next block's, and a sign changes no digit.
@njit(cache=True, nogil=True, fastmath={"reassoc", "contract", "nsz"})
def _fold_four(rows, signs, sums):  # type: ignore[no-untyped-def]
    """Add values of four rows with their signs to sums; returns their squared lengths."""
    (p0, p1, p2, p3), (f0, f1, f2, f3) = rows, sums
    s0 = s1 = s2 = s3 = 0.0
    for k in range(len(signs)):
        sign = np.float32(signs[k])
        f0[k] += sign * np.float32(p0[k])
        f1[k] += sign * np.float32(p1[k])
        f2[k] += sign * np.float32(p2[k])
        f3[k] += sign * np.float32(p3[k])
        s0 += np.float64(p0[k]) * np.float64(p0[k])
        s1 += np.float64(p1[k]) * np.float64(p1[k])
        s2 += np.float64(p2[k]) * np.float64(p2[k])
        s3 += np.float64(p3[k]) * np.float64(p3[k])
    return s0, s1, s2, s3


@njit(cache=True, nogil=True)
def _fold(rows, columns, stored, first, signs, shifts, sums, squares):  # type: ignore[no-untyped-def]
    """Add the columns of FOLDED rows from `first` on to their projections `sums`, and to their squared lengths."""
    size, column = sums.shape[1], first
    while column < first + columns:
        place = column % size
        target = (place + shifts[column // size]) % size
        count = min(size - place, size - target, first + columns - column)
        start, stop, end = column - first, column - first + count, target + count
        places = sums[0, target:end], sums[1, target:end], sums[2, target:end], sums[3, target:end]
        added = _fold_four(_four(rows, 0, start, stop, stored), signs[column : column + count], places)
        for i in range(FOLDED):
            squares[i] += added[i]
        column += count


class CpuStore:
    """float32 and float64 rows are read in place; others, and differences, go through a small buffer.

    Columns are cut into pieces independently of the number of threads, and pieces are summed in order, so the result is
    the same, bit for bit, for any number of threads.
    """

    def __init__(self, data: Sequence[Tensor], chunk: int | None = None) -> None:
        self.data = data
        self.chunk = chunk or CHUNK
        kinds = {row.dtype for row in data}
        self.wide = torch.float64 in kinds
        self.in_place = kinds in ({torch.float32}, {torch.float64}) and all(map(_is_plain, data))
        self.starts = np.array([row.data_ptr() for row in data], dtype=np.int64)

    def gram(self, edges: Sequence[int], differences: bool) -> Tensor:
        """Inner products between edges, [T, N, N], below the diagonal; with many rows, short sums are in float32."""
        exact = differences or len(self.data) <= FEW  # differences may be small relative to the rows
        products = self._gram(edges, differences, exact)
        squares = products.diagonal(dim1=1, dim2=2)
        if exact or (products.isfinite().all() and (squares >= SMALLEST).all()):
            return products
        return self._gram(edges, differences, exact=True)

    def _gram(self, edges: Sequence[int], differences: bool, exact: bool) -> Tensor:
        size = -(-len(self.data) // TILE) * TILE

        def one(piece: Piece) -> NDArray[np.float64]:
            products = np.zeros((size, size))
            for a, b, rows, stored in self._blocks(piece, differences, exact):
                summed = np.float64 if exact else stored
                _add_products(_padded(rows, size), b - a, stored, summed, products)
            return products

        total = np.zeros((len(edges) - 1, size, size))
        for (tensor, _, _), products in self._each(one, edges):
            total[tensor] += products
        return torch.from_numpy(total[:, : len(self.data), : len(self.data)])

    def squares(self, starts: Sequence[Tensor] = ()) -> Tensor:
        """Squared lengths of the rows, or of their differences to `starts`, [N]."""

        def one(piece: Piece) -> NDArray[np.float64]:
            if starts:
                return np.array([_squared_distance(*pair, piece) for pair in zip(self.data, starts, strict=True)])
            blocks = self._blocks(piece)
            squares = [[_squared_length(row, b - a, stored) for row in rows] for a, b, rows, stored in blocks]
            return np.sum(squares, axis=0)  # type: ignore[no-any-return]

        return torch.from_numpy(np.sum([squares for _, squares in self._each(one, (0, len(self.data[0])))], axis=0))

    def mix(self, weights: Tensor, edges: Sequence[int], mixed: Sequence[Tensor]) -> None:
        """Write the rows `weights` [T, M, N] @ rows."""
        size = -(-len(self.data) // GROUP) * GROUP
        matrices = np.zeros((*weights.shape[:2], size))
        matrices[..., : len(self.data)] = weights.numpy()
        dense = bool(weights.all())
        targets = np.array([row.data_ptr() for row in mixed], dtype=np.int64)

        def one(piece: Piece) -> None:
            for a, b, rows, stored in self._blocks(piece):
                _write_mixed(_padded(rows, size), matrices[piece[0]], dense, b - a, stored, targets + 4 * a)

        list(self._each(one, edges))

    def sketch(self, projection: Projection) -> tuple[Tensor, Tensor]:
        """Project the rows, a few of them per thread, and measure their squared lengths."""
        signs, shifts = projection.signs.numpy(), projection.shifts.numpy()
        groups = range(0, len(self.data), FOLDED)
        sketches = np.zeros((len(groups) * FOLDED, projection.size), np.float32)
        squares = np.zeros(len(groups) * FOLDED)

        def one(first: int) -> None:
            some, places = CpuStore(self.data[first : first + FOLDED]), slice(first, first + FOLDED)
            for a, b, rows, stored in some._blocks((0, 0, len(self.data[0]))):
                starts = _padded(rows, FOLDED)
                _fold(starts, b - a, stored, a, signs, shifts, sketches[places], squares[places])

        with ThreadPoolExecutor(torch.get_num_threads()) as pool:
            list(pool.map(one, groups))
        return torch.from_numpy(sketches[: len(self.data)]), torch.from_numpy(squares[: len(self.data)])

    def _each(self, work: Callable[[Piece], T], edges: Sequence[int]) -> Iterator[tuple[Piece, T]]:
        """Do the work on every piece, in order, on as many threads as torch may use."""
        pieces = [
            (tensor, a, min(a + self.chunk, stop))
            for tensor, (start, stop) in enumerate(pairwise(edges))
            for a in range(start, stop, self.chunk)
        ]
        workers = min(torch.get_num_threads(), len(pieces))
        if workers <= 1:
            yield from zip(pieces, map(work, pieces), strict=True)
            return
        with ThreadPoolExecutor(workers) as pool:
            yield from zip(pieces, pool.map(work, pieces), strict=True)

    def _blocks(
        self, piece: Piece, differences: bool = False, exact: bool = False
    ) -> Iterator[tuple[int, int, Addresses, type]]:
        """A piece in one or several blocks: columns from, to, the start of each row, and its type."""
        _, start, stop = piece
        if self.in_place and not differences:
            yield start, stop, self.starts + start * self.data[0].itemsize, np.float64 if self.wide else np.float32
            return
        wide = self.wide or (differences and exact)
        columns = min(max(ROOM, COPIED // len(self.data)), stop - start)
        room = own_pages(len(self.data), columns, torch.float64 if wide else torch.float32)
        rows = room.data_ptr() + np.arange(len(room)) * room.stride(0) * room.itemsize
        for a in range(start, stop, columns):
            b = min(a + columns, stop)
            if (a - start) % (EXPECTED // columns * columns) == 0:
                for row in self.data:
                    if isinstance(row, MappedRow):
                        row.expect(a, min(a + EXPECTED // columns * columns, stop))
            for values, row in zip(room, self.data, strict=True):
                values[: b - a].copy_(row[a:b])
                if isinstance(row, MappedRow):
                    row.release()
            if differences:
                room -= room[0].clone()
            yield a, b, rows, np.float64 if wide else np.float32


def _squared_distance(row: Tensor, start: Tensor, piece: Piece) -> float:
    _, a, b = piece
    distance = torch.linalg.vector_norm(row[a:b].double() - start[a:b].to("cpu", torch.float64))
    if isinstance(row, MappedRow):
        row.release()
    return float(distance) ** 2


def _is_plain(row: Tensor) -> bool:
    return row.device.type == "cpu" and row.is_contiguous() and not isinstance(row, MappedRow)


def _padded(rows: Addresses, size: int) -> Addresses:
    """Repeat the last row up to a size."""
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows))])
