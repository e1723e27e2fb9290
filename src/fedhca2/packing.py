"""Many small tensors as one: copying each by itself takes longer than its bytes, and threads wait for each other."""

from collections.abc import Callable, Sequence
from functools import cache

import torch
from torch import Tensor
from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors

ALIGNED = 256  # bytes that tensors are aligned to, as kernels expect


@torch.no_grad()
def joined(tensors: Sequence[Tensor]) -> Tensor:
    """A new row of all values of tensors of one type.

    >>> joined([torch.tensor([[1, 2]]), torch.tensor(3)])
    tensor([1, 2, 3])
    """
    row: Tensor = _flatten_dense_tensors(tensors)  # type: ignore[no-untyped-call]
    return row.clone() if len(tensors) == 1 else row


@torch.no_grad()
def taken_apart(row: Tensor, like: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Views of a row with the shapes of these tensors."""
    return _unflatten_dense_tensors(row, like)  # type: ignore[no-untyped-call, no-any-return]


def copied_together(
    tensors: Sequence[Tensor], moved: Callable[[Tensor], Tensor] = lambda packed: packed
) -> list[Tensor]:
    """Copies of tensors, which are moved side by side: one move for each type.

    Each is aligned, and autograd takes it for a tensor of its own.

    >>> copied_together([torch.tensor([1.5]), torch.tensor(2), torch.tensor([0.5])])
    [tensor([1.5000]), tensor(2), tensor([0.5000])]
    """
    copies: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(tensor.dtype for tensor in tensors):
        own = [number for number, tensor in enumerate(tensors) if tensor.dtype == dtype]
        unit = ALIGNED // dtype.itemsize
        pieces = [
            piece
            for number in own
            for piece in (tensors[number], _gap(-tensors[number].numel() % unit, dtype, tensors[number].device))
        ]
        parts = taken_apart(moved(joined(pieces)), pieces)
        copies |= {number: parts[2 * place].data for place, number in enumerate(own)}
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
        sources = copied_together(sources, lambda packed: packed.to(targets[0].device))
    if targets:
        torch._foreach_copy_(list(targets), list(sources))


@cache
def _gap(length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.empty(length, dtype=dtype, device=device)
