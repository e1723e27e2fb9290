"""Gaussian noise in whole steps of a lattice, from a key: no floating-point number is ever the noise itself."""

from collections import deque
from decimal import Decimal, localcontext
from functools import lru_cache
from math import exp
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numba import njit
from numpy.typing import NDArray

# A random word names a column of the table, a sign, a step within a bin, and what decides between column and alias.
COLUMN_BITS, OFFSET_BITS, COIN_BITS = 10, 19, 34
COLUMNS, WIDTH, CAPACITY = 2**COLUMN_BITS, 2**OFFSET_BITS, 2**COIN_BITS
DIGITS = 50  # of the table's arithmetic


class _Table(NamedTuple):
    """How bins of WIDTH steps are proposed, and how often a step that is proposed is taken."""

    threshold: NDArray[np.uint64]  # [COLUMNS] coins below it mean the column's own bin, others its alias
    alias: NDArray[np.int64]
    highest: NDArray[np.float64]  # [bins] how often its innermost step is taken when it is proposed
    curvature: float  # 1/2s²


class Noise:
    r"""Draws from the discrete Gaussian, $P(k) \propto e^{-k^2/2s^2}$ over all whole k, with ChaCha20 under a key.

    $s$ is from 2²⁴ to 2²⁵. A bin of steps comes from an alias table with whole weights, a step of it is taken with
    probability $e^{-(k^2 - k_0^2)/2s^2}$ times a constant: each has its probability to a few parts in 10¹⁶, and beyond
    16 s, where there is less than 10⁻⁵⁶, nothing comes.

    >>> Noise(bytes(32), deviation=2.0**24).draw(3).tolist()
    [-10976360, -222056, 10622420]
    """

    def __init__(self, key: bytes, deviation: float) -> None:
        self._cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._table = _table(deviation)

    def draw(self, count: int) -> NDArray[np.int64]:
        """The next deviates."""
        drawn = np.empty(count, np.int64)
        filled = 0
        while filled < count:
            words = np.frombuffer(self._cipher.update(bytes(16 * (count - filled))), "<u8")
            filled += _fill(drawn[filled:], words, *self._table)
        return drawn


@njit(cache=True, nogil=True)
def _fill(drawn, words, threshold, alias, highest, curvature):  # type: ignore[no-untyped-def]
    """Two words for each attempt; returns how many came to something.

    An attempt does the same work whatever it comes to, and how many are in vain says nothing of the others: the time
    that it takes tells nothing of the noise.
    """
    filled = 0
    for attempt in range(len(drawn)):
        word, coin = words[2 * attempt], words[2 * attempt + 1]
        bin = np.int64(word >> np.uint64(64 - COLUMN_BITS))
        if word & np.uint64(CAPACITY - 1) >= threshold[bin]:
            bin = alias[bin]
        offset = np.int64(word >> np.uint64(COIN_BITS)) & (WIDTH - 1)
        start = bin * WIDTH
        step = start + offset
        sign = 1 - 2 * np.int64(word >> np.uint64(COIN_BITS + OFFSET_BITS) & np.uint64(1))
        taken = highest[bin] * exp(-(offset * (start + step)) * curvature)
        drawn[filled] = sign * step
        filled += (np.float64(coin) * 2.0**-64 < taken) & ((step != 0) | (sign > 0))  # 0 has one sign
    return filled


@lru_cache(maxsize=8)
def _table(deviation: float) -> _Table:
    """Bins in proportion to the probability of their innermost steps, in whole parts of COLUMNS · CAPACITY."""
    with localcontext(prec=DIGITS):
        curvature = 1 / (2 * Decimal(deviation) ** 2)
        inner = [(-curvature * (WIDTH * bin) ** 2).exp() for bin in range(COLUMNS)]
        share = COLUMNS * CAPACITY / sum(inner)
        weights = [0] + [int(share * height) + 1 for height in inner[1:]]
        weights[0] = COLUMNS * CAPACITY - sum(weights)  # less than its share, so that all others have more than theirs
        factors = [weights[0] / Decimal(weight) for weight in weights]
        highest = [float(height * factor) for height, factor in zip(inner, factors, strict=True)]
        threshold, alias = _aliases(weights)
        return _Table(threshold, alias, np.array(highest), float(curvature))


def _aliases(weights: list[int]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Walker's table: columns of equal weight with two bins each, exact in whole numbers."""
    left = list(weights)
    alias = list(range(COLUMNS))
    threshold = [CAPACITY] * COLUMNS
    small = deque(bin for bin in range(COLUMNS) if left[bin] < CAPACITY)
    large = deque(bin for bin in range(COLUMNS) if left[bin] > CAPACITY)
    while small:
        column, giver = small.popleft(), large[0]
        threshold[column], alias[column] = left[column], giver
        left[giver] -= CAPACITY - left[column]
        if left[giver] <= CAPACITY:
            large.popleft()
        if left[giver] < CAPACITY:
            small.append(giver)
    return np.array(threshold, np.uint64), np.array(alias, np.int64)
