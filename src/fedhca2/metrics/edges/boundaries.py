"""Boundaries of a label map."""

import torch
from torch import Tensor


def boundaries(labels: Tensor) -> Tensor:
    """Pixels that differ from their east, south or south-east neighbour; bool, shaped like `labels` [..., H, W].

    The last row only compares east, the last column only south, and the last corner is never a boundary.

    >>> boundaries(torch.tensor([[0, 0, 1], [0, 0, 1], [0, 0, 0]])).int()
    tensor([[0, 1, 0],
            [0, 1, 1],
            [0, 0, 0]], dtype=torch.int32)
    """
    edge = torch.zeros_like(labels, dtype=torch.bool)
    here = labels[..., :-1, :-1]
    edge[..., :-1, :-1] = labels[..., 1:, 1:] != here
    edge[..., :, :-1] |= labels[..., :, 1:] != labels[..., :, :-1]
    edge[..., :-1, :] |= labels[..., 1:, :] != labels[..., :-1, :]
    return edge
