"""Rows on a GPU: what is computed from a range of their columns."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedhca2.aggregation import gpu_kernels

VALUES = 1 << 28  # of all rows together that are copied at a time where rows cannot be read as they lie
WHOLE = 1 << 62


class OnDevice:
    """Rows of float32 or float64 are read where they lie; others, or those of several GPUs, are copied part by part."""

    def __init__(self, data: Sequence[Tensor]) -> None:
        self.data = data
        self.device = data[0].device
        self.kind = torch.float64 if any(row.dtype == torch.float64 for row in data) else torch.float32
        self.in_place = all(
            row.dtype == self.kind and row.device == self.device and row.is_contiguous() for row in data
        )
        self.chunk = WHOLE if self.in_place else max(1, VALUES // len(data))
        self.starts = _addresses(data, self.device)

    def gram(self, start: int, stop: int, differences: bool, exact: bool) -> Tensor:
        """Inner products of these columns, [N, N]; all are exact."""
        starts, rows = self._from(start, stop)
        return gpu_kernels.gram(starts, rows[0], stop - start, differences=differences)

    def squares(self, start: int, stop: int) -> Tensor:
        """Squared lengths in these columns, [N]."""
        norms = [torch.linalg.vector_norm(row[start:stop], dtype=torch.float64) for row in self.data]
        return torch.stack([norm.to(self.device) for norm in norms]).square()

    def mix(self, weights: Tensor, start: int, stop: int, mixed: Sequence[Tensor]) -> None:
        """Write these columns of the rows `weights` @ rows, in float64 but for the last rounding."""
        starts, rows = self._from(start, stop)
        targets = _addresses(mixed, self.device) + start * mixed[0].itemsize
        gpu_kernels.mix(starts, rows[0], weights.to(self.device), targets, stop - start)

    def _from(self, start: int, stop: int) -> tuple[Tensor, Sequence[Tensor]]:
        """Where these columns of each row begin, and what has to be kept alive for as long as they are read."""
        if self.in_place:
            return self.starts + start * self.data[0].itemsize, self.data
        copies = [row[start:stop].to(self.device, self.kind).contiguous() for row in self.data]
        return _addresses(copies, self.device), copies


def _addresses(rows: Sequence[Tensor], device: torch.device) -> Tensor:
    return torch.tensor([row.data_ptr() for row in rows], device=device)
