"""Rows in the processor's memory, or mapped from files: what is computed from a range of their columns."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.aggregation import kernels
from fedhca2.aggregation.mapped import MappedRow
from fedhca2.aggregation.pages import own_pages

ROOM = 1 << 14  # columns that are copied at a time where rows cannot be read as they lie

Addresses = NDArray[np.int64]


class InMemory:
    """float32 and float64 rows are read where they lie; others, and differences, through a small room of copies."""

    chunk = 1 << 19

    def __init__(self, data: Sequence[Tensor]) -> None:
        self.data = data
        kinds = {row.dtype for row in data}
        self.wide = torch.float64 in kinds
        self.in_place = kinds in ({torch.float32}, {torch.float64}) and all(map(_is_plain, data))
        self.starts = np.array([row.data_ptr() for row in data], dtype=np.int64)

    def gram(self, start: int, stop: int, differences: bool, exact: bool) -> Tensor:
        """Inner products of these columns, [N, N], below the diagonal; if not `exact`, short sums are in float32."""
        size = -(-len(self.data) // kernels.TILE) * kernels.TILE
        products = np.zeros((size, size))
        for a, b, rows, stored in self._blocks(start, stop, differences, exact):
            summed = np.float64 if exact else stored
            kernels.gram(_padded(rows, size), b - a, stored, summed, products)
        return torch.from_numpy(products[: len(self.data), : len(self.data)])

    def squares(self, start: int, stop: int) -> Tensor:
        """Squared lengths in these columns, [N]."""
        total = torch.zeros(len(self.data), dtype=torch.float64)
        for a, b, rows, stored in self._blocks(start, stop):
            total += torch.tensor([kernels.square(row, b - a, stored) for row in rows], dtype=torch.float64)
        return total

    def mix(self, weights: Tensor, start: int, stop: int, mixed: Sequence[Tensor]) -> None:
        """Write these columns of the rows `weights` @ rows."""
        n = len(self.data)
        size = -(-n // kernels.GROUP) * kernels.GROUP
        matrix = np.zeros((len(weights), size))
        matrix[:, :n] = weights.numpy()
        targets = np.array([row.data_ptr() for row in mixed], dtype=np.int64)
        for a, b, rows, stored in self._blocks(start, stop):
            kernels.mix(_padded(rows, size), matrix, b - a, stored, targets + 4 * a)

    def _blocks(
        self, start: int, stop: int, differences: bool = False, exact: bool = False
    ) -> Iterator[tuple[int, int, Addresses, type]]:
        """Columns start to stop in one or several blocks: from, to, where each row begins, and how it is stored."""
        if self.in_place and not differences:
            yield start, stop, self.starts + start * self.data[0].itemsize, np.float64 if self.wide else np.float32
            return
        wide = self.wide or (differences and exact)
        room = own_pages(len(self.data), min(ROOM, stop - start), torch.float64 if wide else torch.float32)
        rows = room.data_ptr() + np.arange(len(room)) * room.stride(0) * room.itemsize
        for a in range(start, stop, ROOM):
            b = min(a + ROOM, stop)
            for values, row in zip(room, self.data, strict=True):
                values[: b - a].copy_(row[a:b])
                if isinstance(row, MappedRow):
                    row.release()
            if differences:
                room -= room[0].clone()
            yield a, b, rows, np.float64 if wide else np.float32


def _is_plain(row: Tensor) -> bool:
    return row.device.type == "cpu" and row.is_contiguous() and not isinstance(row, MappedRow)


def _padded(rows: Addresses, size: int) -> Addresses:
    """With the last row again and again, up to a size."""
    return np.concatenate([rows, np.repeat(rows[-1:], size - len(rows))])
