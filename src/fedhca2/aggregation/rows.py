"""A stack of rows that is never stacked: inner products and mixtures, streamed over columns of memory or of files."""

import ctypes
import mmap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedhca2.params import Layout

# Which inner products a mixing needs: none, of the rows, or of the rows minus the first of them (which keeps all
# digits of the differences between parameters that are close together).
Measure = Literal["nothing", "rows", "differences"]

_madvise, _trim = None, None
if hasattr(mmap, "MADV_DONTNEED"):  # Linux and macOS; without it, the system manages memory itself
    _madvise = ctypes.CDLL(None, use_errno=True).madvise
    _madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc


@dataclass(frozen=True)
class Member:
    """The owner of a row. Members of one group have the same data set and the same task or tasks.

    `steps` is how many it took in this round. `kept` is the number the aggregator kept for this member
    (`Mixing.keeps`) when it last took part.
    """

    name: str
    group: str
    samples: int = 1
    steps: int = 1
    kept: float | None = None


def projection(columns: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    r"""A random projection of rows to `size` sums, which keeps inner products on average: its signs and shifts.

    Columns are cut into blocks of `size`. A block is multiplied by random signs, -1 or 1 in int8 for each column,
    rotated by a random shift of its own, and added to the sums. Two columns meet in one sum with probability 1/k at
    most, so for all rows x, y and k sums $\langle Sx, Sy \rangle$ has the mean $\langle x, y \rangle$ and the variance
    $\le (\lVert x\rVert^2 \lVert y\rVert^2 + \langle x, y\rangle^2) / k$.
    """
    dice = np.random.default_rng(seed)
    bits = np.frombuffer(dice.bytes(-(-columns // 8)), np.uint8)
    signs = np.unpackbits(bits, count=columns).view(np.int8)
    signs += signs - 1
    return torch.from_numpy(signs), torch.from_numpy(dice.integers(0, size, -(-columns // size)))


class PlainRows:
    """Rows on any device, and what plain torch computes from them in float64: the way of GPUs.

    On a GPU whose tensor cores multiply float64, products take little longer than reading the rows.
    """

    def __init__(self, data: Sequence[Tensor], chunk: int | None = None) -> None:
        """:param chunk: the number of columns that are copied at a time; by default enough to keep a GPU busy."""
        self.data = data
        self.device = data[0].device
        self.dtype = torch.float64 if any(row.dtype == torch.float64 for row in data) else torch.float32
        self.chunk = chunk or max(1, min(1 << 20, (1 << 27) // len(data)))
        self.mapped = [row for row in data if isinstance(row, MappedRow)]

    def gram(self, edges: Sequence[int], differences: bool) -> Tensor:
        """Inner products of the rows, or of their differences to the first, on and below the diagonal: [T, N, N].

        One matrix for the columns between each edge and the next.
        """
        total = torch.zeros(len(edges) - 1, len(self.data), len(self.data), dtype=torch.float64, device=self.device)
        for first, block in self.blocks(0, edges[-1], self.chunk, torch.float64):
            block = block - block[0] if differences else block
            for tensor, inside in _tensors(edges, first, block.shape[1]):
                piece = block[:, inside]  # many short products keep all of a GPU busy
                whole = piece.shape[1] // 4096 * 4096
                short = piece[:, :whole].reshape(len(piece), whole // 4096, 4096).transpose(0, 1)
                rest = piece[:, whole:]
                total[tensor] += torch.bmm(short, short.mT).sum(dim=0) + rest @ rest.T
        return total

    def squares(self, starts: Sequence[Tensor] = ()) -> Tensor:
        """Squared lengths of the rows, or of their differences from `starts` if these are given, [N]."""
        norms = []
        for number, row in enumerate(self.data):
            measured = row.float() - starts[number].to(row.device) if starts else row
            norms.append(torch.linalg.vector_norm(measured, dtype=torch.float64))
        return torch.stack([norm.to(self.device) for norm in norms]).square()

    def mix(self, weights: Tensor, edges: Sequence[int], mixed: Sequence[Tensor]) -> None:
        """Write weights [T, M, N] @ rows to M rows, in float64 except for the last rounding."""
        weights = weights.to(self.device)
        for first, block in self.blocks(0, edges[-1], self.chunk, torch.float64):
            for tensor, inside in _tensors(edges, first, block.shape[1]):
                for row, values in zip(mixed, weights[tensor] @ block[:, inside], strict=True):
                    row[first + inside.start : first + inside.stop] = values

    def sketch(self, size: int, signs: Tensor, shifts: Tensor) -> tuple[Tensor, Tensor]:
        """Project the rows: [N, size] in float32, and their own squared lengths, [N]."""
        columns = len(self.data[0])
        first = torch.arange(0, columns, size, device=self.device)[:, None]
        offsets = torch.arange(size, device=self.device) - shifts.to(self.device)[:, None]
        sources = (first + offsets % size).int()  # of each sum, one column from each block
        there = sources < columns
        sources = sources.where(there, torch.zeros_like(sources)).flatten()
        signs = signs.to(self.device)[sources].view_as(there) * there
        folded = [(row.to(self.device, torch.float32)[sources].view_as(there) * signs).sum(dim=0) for row in self.data]
        return torch.stack(folded), self.squares()

    @property
    def narrow(self) -> int:
        """The number of columns of a block whose copies do not take much memory either."""
        return max(1, min(self.chunk, (1 << 25) // len(self.data)))

    def blocks(self, start: int, stop: int, columns: int, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
        """Copies of all rows, [N, n], over at most `columns` of the columns from `start` to `stop` at a time.

        Gives the first column of each block too. A block is overwritten by the next, so memory is bounded, also if rows
        are in files.
        """
        shape = len(self.data), min(columns, stop - start)
        if self.device.type == "cpu":  # memory that returns to the system when freed; an allocator might keep it
            room = torch.frombuffer(mmap.mmap(-1, shape[0] * shape[1] * dtype.itemsize), dtype=dtype).view(shape)
        else:
            room = torch.empty(shape, dtype=dtype, device=self.device)
        ahead = max(1, (1 << 19) // columns) * columns  # files are announced a megabyte at a time
        for first in range(start, stop, columns):
            last = min(first + columns, stop)
            if (first - start) % ahead == 0:
                for row in self.mapped:
                    row.expect(first, min(first + ahead, stop))
            block = room[:, : last - first]
            self._copy(first, last, block)
            yield first, block

    def _copy(self, first: int, last: int, block: Tensor) -> None:
        """Copy some columns of all rows to a block."""
        if self.device.type != "cpu":  # with few kernels
            block.copy_(torch.stack([row[first:last].to(self.device, self.dtype) for row in self.data]))
            return
        for target, row in zip(block, self.data, strict=True):
            target.copy_(row[first:last])
            if isinstance(row, MappedRow):
                row.release()


def _tensors(edges: Sequence[int], first: int, columns: int) -> Iterator[tuple[int, slice]]:
    """The tensors that have columns in a block, and where these are in it."""
    for tensor, (start, stop) in enumerate(pairwise(edges)):
        inside = slice(max(start - first, 0), min(stop - first, columns))
        if inside.start < inside.stop:
            yield tensor, inside


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
        self, members: Sequence[Member], layout: Layout, data: Sequence[Tensor], *, chunk: int | None = None
    ) -> None:
        if len(members) != len(data):
            raise ValueError(f"expected one row per member ({len(members)}), got {len(data)}")
        for member, row in zip(members, data, strict=True):
            if row.shape != (layout.numel,):
                expected = f"expected a row of {layout.numel} values"
                raise ValueError(f"{member.name}: {expected}, got the shape {tuple(row.shape)}")
        self.members, self.data = members, data
        self.layout = layout
        self.device = data[0].device
        detached = [row.detach() if row.requires_grad else row for row in data]
        if self.device.type == "cpu":
            from fedhca2.aggregation.cpu_rows import CpuRows  # numba takes too long to import for a command's help

            self.store: PlainRows = CpuRows(detached, chunk)
        else:
            self.store = PlainRows(detached, chunk)

    @classmethod
    def unnamed(cls, data: Sequence[Tensor]) -> "Rows":
        """Rows whose owners and tensors do not matter."""
        return cls([Member("", "")] * len(data), Layout(("row",), ((len(data[0]),),)), data)

    def products(self, measure: Measure, whole: bool = False) -> Tensor:
        """Inner products of the rows, or of their differences to the first row, in float64.

        One matrix per tensor, [P, N, N], or [1, N, N] for `whole` rows, which is zero if nothing is measured.
        """
        if measure == "nothing":
            return torch.zeros(1, len(self.members), len(self.members), dtype=torch.float64)
        products = self.store.gram(self._edges(whole), measure == "differences").cpu().tril_()
        return products.add_(products.tril(-1).mT)

    def sketches(self, size: int, seed: int) -> tuple[Tensor, Tensor]:
        """Random projections of the rows, [N, size] in float32, and the rows' own squared lengths, [N] in float64."""
        sketches, squares = self.store.sketch(size, *projection(self.layout.numel, size, seed))
        return sketches, squares.cpu()

    def estimated_products(self, size: int, seed: int) -> Tensor:
        r"""Estimate products of whole rows, [1, N, N], from sketches of this size; the diagonal is exact.

        The cosine of two rows is off by about $1/\sqrt{size}$. Rows that are no longer than that are measured exactly.
        """
        if self.layout.numel <= size:
            return self.products("rows", whole=True)
        sketches, squares = self.sketches(size, seed)
        sketched = Rows.unnamed(list(sketches)).products("rows")
        lengths = sketched[0].diagonal().sqrt()
        scale = squares.sqrt() / lengths.where(lengths > 0, torch.ones_like(lengths))
        products = scale[:, None] * sketched * scale
        products[0].diagonal().copy_(squares)
        return products

    def combine(self, function: Callable[[Tensor], Tensor], count: int) -> list[Tensor]:
        """As many rows in float32 as `count` says, from a function of some columns: [N, n] in float64 to [count, n].

        >>> Rows.unnamed([torch.tensor([1.0, 5.0]), torch.tensor([3.0, 2.0])]).combine(lambda block: block[1:], 1)
        [tensor([3., 2.])]
        """
        results = self._new_rows(count)
        for first, block in self._blocks():
            values = function(block)
            if not isinstance(values, Tensor) or values.shape != (count, block.shape[1]):
                actual = list(values.shape) if isinstance(values, Tensor) else type(values).__name__
                raise ValueError(f"expected the shape [{count}, {block.shape[1]}], got {actual}")
            for row, part in zip(results, values, strict=True):
                row[first : first + block.shape[1]] = part
        return results

    def sums(self, function: Callable[[Tensor], Tensor]) -> Tensor:
        """The sum over all columns of what a function gives for some of them, [N, n] in float64.

        >>> Rows.unnamed([torch.tensor([1.0, -5.0]), torch.zeros(2)]).sums(lambda block: block.abs().sum(dim=1))
        tensor([6., 0.], dtype=torch.float64)
        """
        return torch.stack([function(block) for _, block in self._blocks()]).sum(dim=0)

    def thresholds(self, share: float) -> Tensor:
        """The least of the largest absolute values of every row, [N] in float64; `share` is how many of its values.

        >>> Rows.unnamed([torch.tensor([1.0, -5.0, 2.0, 0.5])]).thresholds(0.5)
        tensor([2.], dtype=torch.float64)
        """
        rank = self.layout.numel - max(1, round(share * self.layout.numel))
        return torch.stack([_in_order(row, rank) for row in self.store.data]).to(self.device)

    def norms(self, starts: Sequence[Tensor] = ()) -> Tensor:
        """Lengths of the rows, or their distances from their own `starts`, [N], in float64."""
        return self.store.squares(starts).cpu().sqrt()

    def mix(self, weights: Tensor) -> list[Tensor]:
        """Rows Σ_j weights[m, j]·row_j in float32, from weights [M, N], or [P, M, N] with one matrix per tensor."""
        matrices = weights.double() if weights.dim() == 3 else weights.double()[None]
        mixed = self._new_rows(matrices.shape[1])
        self.store.mix(matrices, self._edges(whole=weights.dim() == 2), mixed)
        return mixed

    def _new_rows(self, count: int) -> list[Tensor]:
        rows = [torch.empty(self.layout.numel, device=self.device) for _ in range(count)]
        # Getting small pages takes longer than writing them. A system without large ones may refuse.
        if self.device.type == "cpu" and self.layout.numel >= 1 << 20 and hasattr(mmap, "MADV_HUGEPAGE"):
            for row in rows:
                _advise(row, mmap.MADV_HUGEPAGE)
        return rows

    def _blocks(self) -> Iterator[tuple[int, Tensor]]:
        """Some columns of all rows at a time, in float64; a block is overwritten by the next."""
        return self.store.blocks(0, self.layout.numel, self.store.narrow, torch.float64)

    def _edges(self, whole: bool) -> Sequence[int]:
        return (0, self.layout.numel) if whole else self.layout.offsets


def _in_order(row: Tensor, rank: int) -> Tensor:
    """The absolute value of a row that has this rank, in float64."""
    if row.device.type != "cpu":
        return row.abs().double().kthvalue(rank + 1).values
    absolute = row.abs().float() if row.dtype != torch.float64 else row.abs()
    if isinstance(row, MappedRow):
        row.release()
    return torch.from_numpy(np.partition(absolute.numpy(), rank)[rank : rank + 1]).double()[0]


class MappedRow(Tensor):
    """A tensor backed by a file, which only takes memory for what was read and not yet released.

    It is read-only: releasing it drops whatever was written to it.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # pieces are plain tensors

    @classmethod
    def open(cls, path: Path | str, numel: int, dtype: torch.dtype) -> "MappedRow":
        """The first `numel` values of a file."""
        row = torch.from_file(str(path), shared=False, size=numel, dtype=dtype).as_subclass(cls)
        if hasattr(mmap, "MADV_RANDOM"):
            # Read only what `expect` names: megabytes ahead in a thousand files fill the memory.
            _advise(row, mmap.MADV_RANDOM)
        return row

    def expect(self, start: int, stop: int) -> None:
        """Say that the values from `start` to `stop` are read next, so that the system fetches them in one go."""
        if stop > start and hasattr(mmap, "MADV_WILLNEED"):
            _advise(torch.Tensor.__getitem__(self, slice(start, stop)), mmap.MADV_WILLNEED)

    def release(self) -> None:
        """Release its memory; values that are read again come from the file again.

        This releases everything, not only the part that was read, since the system reads ahead.
        """
        if _advise(self, getattr(mmap, "MADV_DONTNEED", 0)):
            raise OSError(ctypes.get_errno(), "madvise failed on a mapped row")


def return_freed_memory() -> None:
    """Return to the system what was freed: glibc keeps much of it if tensors of many sizes come and go."""
    if _trim is not None:
        _trim(0)


def _advise(tensor: Tensor, advice: int) -> int:
    if _madvise is None:
        return 0
    before = tensor.data_ptr() % mmap.PAGESIZE
    return int(_madvise(tensor.data_ptr() - before, tensor.nbytes + before, advice))
