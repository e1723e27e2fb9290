"""Rows on a GPU: what is computed from a range of their columns."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.nn.functional import pad

BATCH = 1 << 12  # columns of one product among many at a time: a GPU is busy with all of them
VALUES = 1 << 28  # of all rows together that are copied at a time: 1 GiB in float32


class OnDevice:
    """Few launches with much to do each; single mixed rows without a copy of the others."""

    def __init__(self, data: Sequence[Tensor]) -> None:
        self.data = data
        self.device = data[0].device
        self.chunk = min(1 << 22, max(BATCH, VALUES // len(data)))

    def gram(self, start: int, stop: int, differences: bool, exact: bool) -> Tensor:
        """Inner products of these columns, [N, N]; if not `exact`, short sums are in float32."""
        block = self._block(start, stop)
        if exact:
            block = block.double()
        if differences:
            block -= block[0].clone()
        if missing := -block.shape[1] % BATCH:
            block = pad(block, (0, missing))
        batches = block.view(len(block), -1, BATCH).transpose(0, 1)
        with _full_precision():
            return torch.bmm(batches, batches.mT).sum(dim=0, dtype=torch.float64)

    def squares(self, start: int, stop: int) -> Tensor:
        """Squared lengths in these columns, [N]."""
        return torch.stack([row.to(self.device).double().square().sum() for row in self._pieces(start, stop)])

    def mix(self, weights: Tensor, start: int, stop: int, mixed: Sequence[Tensor]) -> None:
        """Write these columns of the rows `weights` @ rows, in float64 but for the last rounding."""
        targets = [row[start:stop] for row in mixed]
        if len(mixed) > 1:
            torch._foreach_copy_(targets, list(weights.to(self.device) @ self._block(start, stop).double()))
            return
        total = torch.zeros(stop - start, dtype=torch.float64, device=self.device)
        for row, weight in zip(self._pieces(start, stop), weights[0].tolist(), strict=True):
            total.add_(row.to(self.device), alpha=weight)
        targets[0].copy_(total)

    def _pieces(self, start: int, stop: int) -> list[Tensor]:
        return [row[start:stop] for row in self.data]

    def _block(self, start: int, stop: int) -> Tensor:
        """Columns of all rows, [N, C], in float64 where a row is, and float32 otherwise."""
        kind = torch.float64 if any(row.dtype == torch.float64 for row in self.data) else torch.float32
        return torch.stack([row.to(self.device, kind) for row in self._pieces(start, stop)])


@contextmanager
def _full_precision() -> Iterator[None]:
    """Whatever training allows, float32 is float32 here."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
