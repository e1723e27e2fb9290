"""Protecting an update before it leaves a client: clipping, and Gaussian noise for differential privacy.

The noise consists of whole steps of a lattice, drawn from a key, and never of floating-point numbers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, localcontext
from functools import cache, lru_cache
from hashlib import blake2b
from math import exp, isfinite, sqrt
from typing import Any, NamedTuple

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.clients.privacy import Privacy
from fedhca2.params import Slot

KEY_BYTES = 32
ALMOST = 1 - 2.0**-20  # of the clip: float64 gives the norm of up to 2³² values more precisely than this
PIECE = 2**16  # values at a time
# A random word selects a column of the table, a sign, and a step in a bin, and decides between column and alias.
COLUMN_BITS, OFFSET_BITS, COIN_BITS = 10, 19, 34
COLUMNS, WIDTH, CAPACITY = 2**COLUMN_BITS, 2**OFFSET_BITS, 2**COIN_BITS
DIGITS = 50  # of the table's arithmetic


def privatise(updates: Mapping[Slot, Tensor], privacy: Privacy, key: bytes, round: int) -> dict[Slot, Tensor]:
    r"""Clip and noise updates: $\Delta\cdot\min(1, C/\lVert\Delta\rVert) + \mathcal N(0, \sigma^2C^2)$.

    The norm is that of all rows together, so a round reveals one clipped vector.

    >>> privatise({Slot("encoder"): torch.tensor([3.0, 4.0])}, Privacy(clip=1.0), b"", round=0)
    {Slot(part='encoder', task=''): tensor([0.6000, 0.8000])}
    """
    if privacy.clip is None or not updates:
        return dict(updates)
    if privacy.noise:
        rows = dict(sorted(updates.items()))
        return _noised(rows, privacy, scale_within(privacy.clip, rows.values()), key, round)
    norm = float(torch.stack([update.double().norm() for update in updates.values()]).norm())
    scale = min(1.0, privacy.clip / norm) if norm else 1.0
    return {slot: update * scale for slot, update in updates.items()}


def _noised(rows: Mapping[Slot, Tensor], privacy: Privacy, scale: float, key: bytes, round: int) -> dict[Slot, Tensor]:
    """The scaled update in whole steps of a lattice that does not depend on data, plus whole steps of noise.

    The noise depends on the key, the round and these steps. So an update gets the same noise whenever it is sent again,
    and a different update gets unrelated noise: two messages never reveal the difference of what they hide.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"a key should have {KEY_BYTES} bytes, found {len(key)}")
    step, deviation = privacy.step, privacy.deviation
    hidden = blake2b(key=key, digest_size=KEY_BYTES, person=b"fedhca2 noise")
    hidden.update(repr((round, deviation, [(str(slot), row.numel()) for slot, row in rows.items()])).encode())
    for row in rows.values():
        for steps in in_steps(row, scale, step):
            hidden.update(steps.data)
    noise = Noise(hidden.digest(), deviation / step)

    def sent(row: Tensor) -> Tensor:
        noised = ((steps + noise.draw(len(steps))) * step for steps in in_steps(row, scale, step))
        return torch.cat([torch.from_numpy(piece).to(row.dtype) for piece in noised]).to(row.device)

    return {slot: sent(row) for slot, row in rows.items()}


def scale_within(clip: float, rows: Iterable[Tensor]) -> float:
    """The factor that makes all rows together no longer than the clip, in spite of rounding in their norm."""
    norm = sqrt(sum(float(np.square(piece).sum()) for row in rows for piece in _pieces(row)))
    if not isfinite(norm):
        raise ValueError("an update should be finite to be clipped, found NaN or infinite values")
    return min(1.0, ALMOST * clip / norm) if norm else 1.0


def in_steps(row: Tensor, scale: float, step: float) -> Iterator[NDArray[np.int64]]:
    """Convert a scaled row to whole steps, piece by piece; truncated towards zero, so that it does not get longer."""
    return ((piece * (scale / step)).astype(np.int64) for piece in _pieces(row))


def _pieces(row: Tensor) -> Iterator[NDArray[np.float64]]:
    return (piece.double().numpy() for piece in torch.split(row.detach().cpu(), PIECE))


class AliasTable(NamedTuple):
    """How bins of WIDTH steps are proposed, and how often a proposed step is accepted."""

    threshold: NDArray[np.uint64]  # [COLUMNS] coins below it select the column's own bin, others its alias
    alias: NDArray[np.int64]
    highest: NDArray[np.float64]  # [bins] acceptance rate of the innermost step
    curvature: float  # 1/2s²


class Noise:
    r"""Draws from the discrete Gaussian, $P(k) \propto e^{-k^2/2s^2}$ over all integers k, with ChaCha20 and a key.

    $s$ is from 2²⁴ to 2²⁵. An alias table with integer weights selects a bin of steps, and a step in it is accepted
    with probability $e^{-(k^2 - k_0^2)/2s^2}$ times a constant. Each k has its probability to within a few parts in
    10¹⁶. Nothing is drawn beyond 16 s, where the probability is below 10⁻⁵⁶.

    >>> Noise(bytes(32), deviation=2.0**24).draw(3).tolist()
    [-10976360, -222056, 10622420]
    """

    def __init__(self, key: bytes, deviation: float) -> None:
        self._cipher = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
        self._table = alias_table(deviation)

    def draw(self, count: int) -> NDArray[np.int64]:
        """The next deviates."""
        drawn = np.empty(count, np.int64)
        filled = 0
        while filled < count:
            words = np.frombuffer(self._cipher.update(bytes(16 * (count - filled))), "<u8")
            filled += _compiled_fill()(drawn[filled:], words, *self._table)
        return drawn


@cache
def _compiled_fill() -> Callable[..., int]:
    from numba import njit  # a compiler, which takes a second to import

    compiled: Callable[..., int] = njit(cache=True, nogil=True)(_fill)
    return compiled


def _fill(drawn, words, threshold, alias, highest, curvature):  # type: ignore[no-untyped-def]
    """Use two words per attempt; returns how many attempts were accepted.

    Every attempt does the same work whatever its outcome, and the number of rejections is independent of the accepted
    values, so the time taken reveals nothing about the noise.
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
def alias_table(deviation: float) -> AliasTable:
    """Weight bins by the probability of their innermost steps, in whole parts of COLUMNS · CAPACITY."""
    with localcontext(prec=DIGITS):
        curvature = 1 / (2 * Decimal(deviation) ** 2)
        inner = [(-curvature * (WIDTH * bin) ** 2).exp() for bin in range(COLUMNS)]
        share = COLUMNS * CAPACITY / sum(inner)
        weights = [0] + [int(share * height) + 1 for height in inner[1:]]
        weights[0] = COLUMNS * CAPACITY - sum(weights)  # below its share, so that all others are above theirs
        factors = [weights[0] / Decimal(weight) for weight in weights]
        highest = [float(height * factor) for height, factor in zip(inner, factors, strict=True)]
        threshold, alias = _aliases(weights)
        return AliasTable(threshold, alias, np.array(highest), float(curvature))


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
