"""Sketches: a few random linear measurements of a row, which keep its inner products with others."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedhca2.params import Slot
from fedhca2.seeds import derive

BLOCKS = 8  # sums that each value of a row is in
PIECE = 2**20  # values at a time


@dataclass(frozen=True)
class Sketcher:
    r"""Sparse random projections, the same for all clients and new in every round.

    Each value of a row goes, with a random sign, into one random bucket of each of the blocks (Kane and Nelson 2014).
    For all rows x, y, and k numbers in a sketch, $\langle Sx, Sy \rangle$ has the mean $\langle x, y \rangle$ and
    the variance $\le (\lVert x\rVert^2 \lVert y\rVert^2 + \langle x, y\rangle^2) / k$.
    """

    size: int
    seed: int

    def sketch(self, row: Tensor, slot: Slot, round: int) -> Tensor:
        """A row's sketch, [size].

        >>> Sketcher(16, seed=0).sketch(torch.full((1,), 8**0.5), Slot("encoder"), round=0).abs().sum()
        tensor(8.)
        """
        dice = np.random.default_rng(derive(self.seed, "sketch", round, str(slot)))
        width = self.size // BLOCKS
        sums = np.zeros((BLOCKS, width))
        for piece in torch.split(row.detach().cpu().double(), PIECE):
            values = piece.numpy()
            for block in sums:
                drawn = dice.integers(0, 2 * width, len(values))
                block += np.bincount(drawn >> 1, np.where(drawn & 1, values, -values), width)
        return torch.from_numpy(sums.reshape(-1) / BLOCKS**0.5).float()
