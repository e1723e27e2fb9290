"""Stochastic depth: in training a residual path is left out for some images of a batch.

timm draws them from PyTorch's global generator, which clients in threads share. Here the draws come from outside.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from timm.layers.drop import DropPath
from torch import Tensor, nn


class GivenDropPath(DropPath):
    """A path that is told in training which images keep it, and by which factor."""

    keep: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """The path's values, scaled image by image in training."""
        if not self.training:
            return x
        if self.keep is None:
            raise RuntimeError("stochastic depth should have draws in training, set by `dropping`, found none")
        return x * self.keep.view(-1, *[1] * (x.ndim - 1))


def take_over_drop_paths(body: nn.Module) -> list[GivenDropPath]:
    """All paths of a timm backbone that can be left out; from now on they draw nothing themselves."""
    for module in body.modules():
        if type(module) is DropPath and module.drop_prob:
            module.__class__ = GivenDropPath
    return [module for module in body.modules() if isinstance(module, GivenDropPath)]


def draw_keep(paths: Sequence[GivenDropPath], steps: int, images: int, dice: np.random.Generator) -> Tensor:
    """Factors [steps, paths, images]: 0 as often as a path's rate says, else 1 / (1 − rate)."""
    kept = 1 - np.array([[path.drop_prob] for path in paths])
    return torch.from_numpy(np.float32((dice.random((steps, len(paths), images)) < kept) / kept))


@contextmanager
def dropping(paths: Sequence[GivenDropPath], keep: Tensor | None) -> Iterator[None]:
    """Let paths keep what `draw_keep` drew for one step; None where a model has no such paths."""
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
