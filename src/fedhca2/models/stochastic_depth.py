"""Stochastic depth: in training, a residual path is dropped for some images of a batch.

timm draws them from PyTorch's global generator, which clients in threads share. Here the draws are passed in.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn


class GivenDropPath(DropPath):
    """A residual path that gets its draws in training: which images keep it, and with which factor."""

    keep: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Scale the path's values image by image in training."""
        if not self.training:
            return x
        if self.keep is None:
            raise RuntimeError("stochastic depth should have draws in training, set by `dropping`, found none")
        return x * self.keep.view(-1, *[1] * (x.ndim - 1))


def take_over_drop_paths(body: nn.Module) -> list[GivenDropPath]:
    """All droppable paths of a timm backbone; from now on they draw nothing themselves."""
    for module in body.modules():
        if type(module) is DropPath and module.drop_prob:
            module.__class__ = GivenDropPath
    return [module for module in body.modules() if isinstance(module, GivenDropPath)]


def draw_keep(paths: Sequence[GivenDropPath], steps: int, images: int, dice: np.random.Generator) -> Tensor:
    """Factors [steps, paths, images]: 0 with the probability of a path's rate, otherwise 1 / (1 − rate)."""
    kept = 1 - np.array([[path.drop_prob] for path in paths])
    return torch.from_numpy(np.float32((dice.random((steps, len(paths), images)) < kept) / kept))


@contextmanager
def dropping(paths: Sequence[GivenDropPath], keep: Tensor | None) -> Iterator[None]:
    """Use the draws of `draw_keep` for one step; None if a model has no such paths."""
    if keep is None:
        yield
        return
    for path, factors in zip(paths, keep, strict=True):
        path.keep = factors
    try:
        yield
    finally:
        for path in paths:
            path.keep = None
