"""A model's parameters by part, and rows: one flat vector per part, with a layout that names its pieces.

Many small tensors are copied as one: each copy has a cost of its own, and lets other threads take the interpreter.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import Literal, Protocol, get_args

import torch
from torch import Tensor, nn

# The norms are the running statistics of normalisation layers: not parameters, and local unless a method shares them.
Part = Literal["encoder", "decoder", "head", "encoder_norms", "decoder_norms"]
PARTS: tuple[Part, ...] = get_args(Part)
TOGETHER = 2**22  # values of a row that are multiplied in float64 at a time
STATISTICS: dict[Part, Part] = {"encoder": "encoder_norms", "decoder": "decoder_norms"}  # the statistics of each part


@dataclass(frozen=True, order=True)
class Slot:
    """One place in a client's model: its encoder, or the decoder or head of one of its tasks.

    >>> str(Slot("decoder", "semseg")), Slot.parse("encoder")
    ('decoder.semseg', Slot(part='encoder', task=''))
    """

    part: Part
    task: str = ""

    def __str__(self) -> str:
        return f"{self.part}.{self.task}" if self.task else self.part

    @property
    def statistics(self) -> "Slot | None":
        """The slot of the running statistics of its layers, if a model has them for this part."""
        return Slot(STATISTICS[self.part], self.task) if self.part in STATISTICS else None

    @classmethod
    def parse(cls, text: str) -> "Slot":
        """Parse what `str` wrote."""
        part, _, task = text.partition(".")
        if part not in PARTS or part.startswith("encoder") == bool(task):
            raise ValueError(f"expected one of {', '.join(PARTS)}, then .TASK except for encoders, got {text!r}")
        return cls(part, task)


ENCODER = Slot("encoder")


@dataclass(frozen=True)
class Layout:
    """Names and shapes of the tensors in a row, in order.

    A tensor's layer is its name up to the last dot: a weight and its bias belong to one layer.

    >>> layout = Layout(("fuse.weight", "fuse.bias", "norm.weight"), ((2, 3), (2,), (2,)))
    >>> layout.numel, layout.layers, layout.layer_of
    (10, ('fuse', 'norm'), (0, 0, 1))
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> "Layout":
        """Describe these tensors."""
        return cls(tuple(tensors), tuple(tuple(tensor.shape) for tensor in tensors.values()))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of values in each tensor."""
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Start of each tensor in the row, followed by the length of the row."""
        return tuple(accumulate(self.sizes, initial=0))

    @property
    def numel(self) -> int:
        """Length of the row."""
        return self.offsets[-1]

    @cached_property
    def layers(self) -> tuple[str, ...]:
        """Names of the layers, in order."""
        return tuple(dict.fromkeys(name.rpartition(".")[0] for name in self.names))

    @cached_property
    def layer_of(self) -> tuple[int, ...]:
        """The index of each tensor's layer."""
        return tuple(self.layers.index(name.rpartition(".")[0]) for name in self.names)


class Slotted(Protocol):
    """A model whose tensors are known by slot."""

    def slots(self) -> dict[Slot, dict[str, Tensor]]:
        """The tensors of every slot, by their names within it."""

    def parameters(self) -> Iterator[nn.Parameter]:
        """All parameters, as torch lists them."""


def layouts(model: Slotted) -> dict[Slot, Layout]:
    """The layout of each slot's row."""
    return {slot: Layout.of(tensors) for slot, tensors in model.slots().items()}


@torch.no_grad()
def copy_packed(tensors: Sequence[Tensor], move: Callable[[Tensor], Tensor] = lambda packed: packed) -> list[Tensor]:
    """Copies of tensors, which are moved side by side: one move for each type.

    Each is aligned to 256 bytes, as kernels expect, and autograd takes it for a tensor of its own.

    >>> copy_packed([torch.tensor([1.5]), torch.tensor(2), torch.tensor([0.5])])
    [tensor([1.5000]), tensor(2), tensor([0.5000])]
    """
    copies: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        own = {number: tensor for number, tensor in enumerate(tensors) if tensor.dtype == dtype}
        unit = 256 // dtype.itemsize
        gaps = [each.new_empty(-each.numel() % unit) for each in own.values()]
        pieces = [piece.reshape(-1) for pair in zip(own.values(), gaps, strict=True) for piece in pair]
        parts = torch.split(move(torch.cat(pieces)), [len(piece) for piece in pieces])[::2]
        copies |= {number: part.view(own[number].shape).data for number, part in zip(own, parts, strict=True)}
    return [copies[number] for number in range(len(tensors))]


@torch.no_grad()
def copy_values(targets: Sequence[Tensor], sources: Sequence[Tensor]) -> None:
    """Copy tensors into others, on one device or from host memory to a GPU.

    >>> target = torch.zeros(2)
    >>> copy_values([target], [torch.tensor([1.5, 0.5])])
    >>> target
    tensor([1.5000, 0.5000])
    """
    if targets and targets[0].device != sources[0].device:
        sources = copy_packed(sources, lambda packed: packed.to(targets[0].device))
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


@torch.no_grad()
def flatten(tensors: Mapping[str, Tensor], layout: Layout) -> Tensor:
    """Copy these tensors into a new row."""
    return torch.cat([tensors[name].reshape(-1) for name in layout.names])


def unflatten(row: Tensor, layout: Layout) -> dict[str, Tensor]:
    """Split a row into tensors that are views of it."""
    pieces = torch.split(row, list(layout.sizes))
    return {name: piece.view(shape) for name, piece, shape in zip(layout.names, pieces, layout.shapes, strict=True)}


def assign(tensors: Mapping[str, Tensor], row: Tensor, layout: Layout) -> None:
    """Copy a row into these tensors."""
    copy_values([tensors[name] for name in layout.names], list(unflatten(row, layout).values()))


def row_product(a: Tensor, b: Tensor) -> float:
    """Inner product of two rows, in float64.

    >>> row_product(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]))
    32.0
    """
    pieces = zip(torch.split(a, TOGETHER), torch.split(b, TOGETHER), strict=True)
    return float(torch.stack([one.double() @ other.double() for one, other in pieces]).sum())


def layer_products(a: Tensor, b: Tensor, layout: Layout) -> Tensor:
    """Inner product of two rows, layer by layer, in float64.

    >>> layout = Layout(("a.weight", "b.weight"), ((2,), (1,)))
    >>> layer_products(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([4.0, 5.0, 6.0]), layout)
    tensor([14., 18.], dtype=torch.float64)
    """
    products = torch.zeros(len(layout.layers), dtype=torch.float64, device=a.device)
    for layer, start, size in zip(layout.layer_of, layout.offsets, layout.sizes, strict=False):
        piece = slice(start, start + size)
        products[layer] += a[piece].double() @ b[piece].double()
    return products


def add_scaled(row: Tensor, addend: Tensor, scale: Tensor, layout: Layout) -> Tensor:
    """`row + scale · addend` as a new row, with one scale for all or one per layer.

    >>> layout = Layout(("a.weight", "b.weight"), ((2,), (1,)))
    >>> add_scaled(torch.zeros(3), torch.ones(3), torch.tensor([2.0, 5.0]), layout)
    tensor([2., 2., 5.])
    """
    if scale.numel() == 1:
        return torch.add(row, addend, alpha=float(scale))
    of_tensor = scale[list(layout.layer_of)].to(row)
    sizes = torch.tensor(layout.sizes, device=row.device)
    return torch.addcmul(row, addend, of_tensor.repeat_interleave(sizes))
