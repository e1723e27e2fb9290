"""Rows in main memory or mapped from files, and what kernels compute from them; the store keeps the rows alive."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.aggregation.cpu_kernels import (
    COLUMNS,
    FOLDED,
    GROUP,
    TILE,
    add_products,
    fold,
    squared_length,
    write_mixed,
)
from fedhca2.aggregation.rows import MappedRow, Projection, own_pages

# This many rows can be multiplied in float64 in the time it takes to read them. With more rows, products are summed
# over a thousand columns in float32, and these sums in float64.
FEW = 12
SMALLEST = 1e-30  # the smallest squared length whose digits float32 holds
CHUNK = 1 << 19  # columns that a thread works on at a time
ROOM = 1 << 15  # columns that are copied at a time if rows cannot be read in place, or more if there are few rows:
COPIED = 1 << 19  # this many values fit into a fast cache
EXPECTED = 1 << 19  # columns of a row in a file that are fetched at a time
STORED = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.uint16}  # what kernels read

Addresses = NDArray[np.int64]
Piece = tuple[int, int, int]  # the edge before it, and its columns: from, to
T = TypeVar("T")


class CpuStore:
    """Rows of one type in memory are read in place; those in files, others, and differences go through a small buffer.

    Columns are cut into pieces independently of the number of threads, and pieces are summed in order, so the result is
    the same, bit for bit, for any number of threads.
    """

    def __init__(self, data: Sequence[Tensor], chunk: int | None = None) -> None:
        self.data = data
        self.chunk = chunk or CHUNK
        kinds = {row.dtype for row in data}
        self.wide = torch.float64 in kinds
        self.stored = (
            STORED.get(data[0].dtype) if len(kinds) == 1 and all(row.is_contiguous() for row in data) else None
        )
        self.mapped = [row for row in data if isinstance(row, MappedRow)]
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
                summed = np.float64 if exact or self.wide else np.float32
                add_products(_padded(rows, size), b - a, stored, summed, products)
            return products

        total = np.zeros((len(edges) - 1, size, size))
        for (tensor, _, _), products in self._each(one, edges):
            total[tensor] += products
        return torch.from_numpy(total[:, : len(self.data), : len(self.data)])

    def squares(self, starts: Sequence[Tensor] = ()) -> Tensor:
        """Squared lengths of the rows, or of their differences to `starts`, [N]."""
        each = [CpuStore([row]) for row in self.data]

        def one(piece: Piece) -> NDArray[np.float64]:
            if starts:
                return np.array([_squared_distance(*pair, piece) for pair in zip(self.data, starts, strict=True)])
            return np.array([alone._squared_length(piece) for alone in each])

        return torch.from_numpy(np.sum([squares for _, squares in self._each(one, (0, len(self.data[0])))], axis=0))

    def _squared_length(self, piece: Piece) -> float:
        """Squared length of a piece of the first row."""
        return float(sum(squared_length(rows[0], b - a, stored) for a, b, rows, stored in self._blocks(piece)))

    def mix(self, weights: Tensor, edges: Sequence[int], mixed: Sequence[Tensor]) -> None:
        """Write the rows `weights` [T, M, N] @ rows."""
        size = -(-len(self.data) // GROUP) * GROUP
        matrices = np.zeros((*weights.shape[:2], size))
        matrices[..., : len(self.data)] = weights.numpy()
        dense = bool(weights.all())
        targets = np.array([row.data_ptr() for row in mixed], dtype=np.int64)

        def one(piece: Piece) -> None:
            for a, b, rows, stored in self._blocks(piece):
                write_mixed(_padded(rows, size), matrices[piece[0]], dense, b - a, stored, targets + 4 * a)

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
                fold(starts, b - a, stored, a, signs, shifts, sketches[places], squares[places])

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
        kind, stored = self.data[0].dtype, self.stored
        if stored and not self.mapped and not differences:
            yield start, stop, self.starts + start * self.data[0].itemsize, stored
            return
        if stored is None or differences:
            wide = self.wide or (differences and exact)
            kind, stored = (torch.float64, np.float64) if wide else (torch.float32, np.float32)
        columns = min(max(ROOM, COPIED // len(self.data) // COLUMNS * COLUMNS), stop - start)
        room = own_pages(len(self.data), columns, kind)
        rows = room.data_ptr() + np.arange(len(room)) * room.stride(0) * room.itemsize
        places = room.unbind()
        for a in range(start, stop, columns):
            b = min(a + columns, stop)
            if (a - start) % (EXPECTED // columns * columns) == 0:
                for file in self.mapped:
                    file.expect(a, min(a + EXPECTED // columns * columns, stop))
            for place, row in zip(places, self.data, strict=True):
                (place if b - a == columns else place[: b - a]).copy_(row[a:b])
                if isinstance(row, MappedRow):
                    row.release()
            if differences:
                room -= room[0].clone()
            yield a, b, rows, stored


def _squared_distance(row: Tensor, start: Tensor, piece: Piece) -> float:
    _, a, b = piece
    distance = torch.linalg.vector_norm(row[a:b].double() - start[a:b].to("cpu", torch.float64))
    if isinstance(row, MappedRow):
        row.release()
    return float(distance) ** 2


def _padded(rows: Addresses, size: int) -> Addresses:
    """Repeat the last row up to a size."""
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows))])
