"""Many small tensors as one: each copy has a cost of its own, and lets other threads take the interpreter."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor


@torch.no_grad()
def concatenate(tensors: Sequence[Tensor]) -> Tensor:
    """A new row of all values of tensors of one type.

    >>> concatenate([torch.tensor([[1, 2]]), torch.tensor(3)])
    tensor([1, 2, 3])
    """
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


@torch.no_grad()
def split_like(row: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Views of a row with the shapes of these tensors."""
    parts = torch.split(row, [tensor.numel() for tensor in tensors])
    return [part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True)]


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
        pieces = [piece for each in own.values() for piece in (each, _gap(-each.numel() % unit, dtype, each.device))]
        parts = split_like(move(concatenate(pieces)), pieces)[::2]
        copies |= {number: part.data for number, part in zip(own, parts, strict=True)}
    return [copies[number] for number in range(len(tensors))]


@cache
def _gap(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(length, dtype=dtype, device=device)


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
