"""A stack of rows that is never stacked: inner products and mixtures, streamed over columns in chunks."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedhca2.aggregation.aggregator import Measure, Member
from fedhca2.params import Layout

# Values of all rows together that are in flight at a time, in float64: 2 MiB, which a processor's cache holds.
CHUNK = 1 << 18
# Up to here mixed rows are summed one product at a time, whose bits depend on nothing but the values.
FEW = 4


class Rows:
    """One row per member, in memory, memory-mapped or on a GPU, in any floating type.

    >>> members, layout = [Member("a", "g"), Member("b", "g")], Layout(("x.weight",), ((2,),))
    >>> rows = Rows(members, layout, [torch.ones(2), torch.zeros(2)])
    >>> rows.products("rows")
    tensor([[[2., 0.],
             [0., 0.]]], dtype=torch.float64)
    >>> rows.mix(torch.tensor([[0.5, 0.5]]))
    [tensor([0.5000, 0.5000])]
    """

    def __init__(
        self, members: Sequence[Member], layout: Layout, data: Sequence[Tensor], *, chunk: int = CHUNK
    ) -> None:
        if len(members) != len(data):
            raise ValueError(f"rows should be one per member ({len(members)}), found {len(data)}")
        for member, row in zip(members, data, strict=True):
            if row.shape != (layout.numel,):
                raise ValueError(f"{member.name}: row should have shape ({layout.numel},), found {tuple(row.shape)}")
        self.members = members
        self.layout = layout
        self.data = data
        self.device = data[0].device
        self.step = max(1, chunk // len(data))

    def _chunks(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        """Columns start to stop of all rows in float64, a chunk at a time, in the same memory."""
        room = torch.empty(
            len(self.data), max(1, min(self.step, stop - start)), dtype=torch.float64, device=self.device
        )
        for a in range(start, stop, self.step):
            b = min(a + self.step, stop)
            block = room[:, : b - a]
            for values, row in zip(block, self.data, strict=True):
                values.copy_(row[a:b])
            yield a, b, block

    def products(self, measure: Measure) -> Tensor:
        """Inner products of the rows, or of their differences to the first row, one [N, N] per tensor, in float64."""
        n = len(self.data)
        products = torch.zeros(len(self.layout.sizes), n, n, dtype=torch.float64, device=self.device)
        if measure == "nothing":
            return products.cpu()
        for product, start, size in zip(products, self.layout.offsets, self.layout.sizes, strict=False):
            for _, _, block in self._chunks(start, start + size):
                if measure == "differences":
                    block -= block[0].clone()
                product += block @ block.T
        return products.cpu()

    def mix(self, weights: Tensor) -> list[Tensor]:
        """Rows Σ_j weights[m, j]·row_j in float32, from weights [M, N], or [P, M, N] with one matrix per tensor."""
        if weights.dim() == 2:
            pieces = [(weights, 0, self.layout.numel)]
        else:
            ends = self.layout.offsets[1:]
            pieces = list(zip(weights, self.layout.offsets, ends, strict=False))
        mixed = [torch.empty(self.layout.numel, device=self.device) for _ in range(weights.shape[-2])]
        for matrix, start, stop in pieces:
            matrix = matrix.to(device=self.device, dtype=torch.float64)
            for a, b, block in self._chunks(start, stop):
                for row, values in zip(mixed, _combine(matrix, block), strict=True):
                    row[a:b].copy_(values)
        return mixed


def _combine(matrix: Tensor, block: Tensor) -> Tensor:
    """`matrix @ block`; for few rows in a fixed order of single roundings, so that no chunking shows in the result."""
    if len(matrix) > FEW:
        return matrix @ block
    sums = torch.zeros(len(matrix), block.shape[1], dtype=block.dtype, device=block.device)
    product = torch.empty_like(sums[0])
    for total, weights in zip(sums, matrix.tolist(), strict=True):
        for weight, values in zip(weights, block, strict=True):
            if weight:
                total += torch.mul(values, weight, out=product)
    return sums
