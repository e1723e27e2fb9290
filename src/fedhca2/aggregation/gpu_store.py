"""Rows on a GPU, and what is computed from them."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedhca2.aggregation import gpu_kernels

VALUES = 1 << 28  # of all rows together that are copied at a time if rows cannot be read in place


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
            total += gpu_kernels.gram(starts, row, inside, differences=differences)
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
            gpu_kernels.mix(starts, row, weights, inside, targets + begin * mixed[0].itemsize)

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
