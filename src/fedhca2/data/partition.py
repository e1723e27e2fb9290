"""Which images each client has."""

from collections.abc import Sequence

import numpy as np


def even_split(count: int, shares: int, seed: int) -> list[list[int]]:
    """A seeded permutation of `count` indices, cut into `shares` parts whose sizes differ by one at the most.

    >>> even_split(5, 2, seed=0)
    [[2, 0, 1], [3, 4]]
    """
    if shares > count:
        raise ValueError(f"{count} images cannot be split over {shares} clients")
    order = np.random.RandomState(seed).permutation(count)
    return [part.tolist() for part in np.array_split(order, shares)]


def keep(indices: Sequence[int], usable: Sequence[int]) -> list[int]:
    """The indices that are usable, in their order."""
    allowed = set(usable)
    return [index for index in indices if index in allowed]
