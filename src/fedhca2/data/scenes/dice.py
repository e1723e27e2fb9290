"""Random numbers for drawing scenes."""

from collections.abc import Sequence
from typing import TypeVar

import numpy as np

T = TypeVar("T")


class Dice:
    """A NumPy generator read in blocks: drawing a scene takes hundreds of single numbers, each a slow call otherwise.

    >>> dice = Dice([0, 1])
    >>> 2 <= dice.uniform(2, 3) < 3, dice.pick("aaa"), len(dice.several(0, 1, 5))
    (True, 'a', 5)
    """

    def __init__(self, seed: Sequence[int]) -> None:
        self._generator = np.random.default_rng(seed)
        self._block: list[float] = []

    def _next(self) -> float:
        if not self._block:
            self._block = self._generator.random(256).tolist()
        return self._block.pop()

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self._next()

    def several(self, low: float, high: float, count: int) -> list[float]:
        """Several numbers in [low, high)."""
        return [low + (high - low) * self._next() for _ in range(count)]

    def below(self, bound: int) -> int:
        """A whole number from 0 to bound - 1."""
        return int(bound * self._next())

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._next() < probability
