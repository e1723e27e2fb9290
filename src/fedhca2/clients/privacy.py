"""Privacy: what a client's update hides. Its settings, its cost as an ε, and clipping and noise themselves.

Noise consists of whole steps of a lattice, drawn from a key, and never of floating-point numbers.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from decimal import Decimal, localcontext
from functools import cache, lru_cache
from hashlib import blake2b
from math import ceil, exp, floor, frexp, inf, isfinite, ldexp, log10, sqrt
from typing import Any

import numpy as np
import scipy  # imports its parts when they are used
import torch
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from fedhca2.config import Config
from fedhca2.params import Slot

DELTA = 1e-5
MIN_NOISE = 1e-3  # less noise hides nothing: one update would cost an ε of 500,000
KEY_BYTES = 32
CHUNK = 2**16  # values that are noised at a time
# A random word selects a column of the table, a sign, and a step in a bin, and decides between column and alias.
COLUMN_BITS, OFFSET_BITS, COIN_BITS = 10, 19, 34
COLUMNS, WIDTH, CAPACITY = 2**COLUMN_BITS, 2**OFFSET_BITS, 2**COIN_BITS


class Privacy(Config):
    """How much of a client's update is hidden; nothing by default."""

    clip: float | None = Field(
        None, ge=1e-20, le=1e20, description="largest norm of everything a client sends in a round"
    )
    noise: float = Field(0.0, ge=0, le=1e9, description="standard deviation of the noise on each number, in clips")

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> "Privacy":
        if self.noise and self.clip is None:
            raise ValueError("expected a clip with the noise, to bound what the noise hides, got none")
        if 0 < self.noise < MIN_NOISE:
            raise ValueError(
                f"expected a noise of 0, or at least {MIN_NOISE:g}, with which one update costs an ε of "
                f"{epsilon(MIN_NOISE):,.0f}, got {self.noise:g}"
            )
        return self

    @property
    def active(self) -> bool:
        """Whether updates are changed at all."""
        return self.clip is not None

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on each number."""
        return self.noise * (self.clip or 0.0)

    @property
    def step(self) -> float:
        """The unit of every noised number: a power of two; a standard deviation has 2²⁴ to 2²⁵ of them."""
        return ldexp(1.0, frexp(self.deviation)[1] - 1 - 24)

    def stricter(self, other: "Privacy") -> "Privacy":
        """Combine the smaller clip and the larger noise of two settings.

        >>> Privacy(clip=1.0, noise=2.0).stricter(Privacy(clip=0.5))
        Privacy(clip=0.5, noise=2.0)
        """
        clips = [each.clip for each in (self, other) if each.clip is not None]
        return Privacy(clip=min(clips, default=None), noise=max(self.noise, other.noise))


def epsilon(noise: float, updates: int = 1, delta: float = DELTA) -> float:
    r"""The ε of this many updates with this noise, exact for the Gaussian mechanism.

    Updates compose to one mechanism with $\mu = \sqrt{T}/\sigma$, for which (Balle and Wang, ICML 2018)

    $$\delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon\,\Phi(-\mu/2 - \varepsilon/\mu).$$

    Neighbours differ in whether a client's updates are present or zero. The server sees who takes part, so sampling
    clients gives no amplification. `audited_epsilon` checks the result with a library.

    >>> round(epsilon(noise=1.0), 3), round(epsilon(noise=4.0, updates=100), 3)
    (4.377, 13.207)
    """
    if not updates or noise == inf:
        return 0.0
    if not noise:
        return inf
    mu = sqrt(updates) / noise

    def excess(candidate: float) -> float:
        second_term = exp(candidate + float(scipy.special.log_ndtr(-mu / 2 - candidate / mu)))
        return exp(float(scipy.special.log_ndtr(mu / 2 - candidate / mu))) - second_term - delta

    return _root(excess, 0.0)


def combined(updates: Mapping[float, int]) -> float:
    r"""The noise of one update that reveals as much as all of these, counted by noise: $(\sum n_i/\sigma_i^2)^{-1/2}$.

    >>> combined({2.0: 4}), combined({})
    (1.0, inf)
    """
    precision = sum(count * noise**-2 for noise, count in updates.items())
    return 1 / sqrt(precision) if precision else inf


def noise_for(budget: float, updates: int, delta: float = DELTA) -> float:
    """The least noise with which this many updates cost at most the wanted ε, rounded up to four digits.

    >>> noise_for(8.0, updates=100)
    6.003
    """
    least = sqrt(updates) * _noise_of_one(budget, delta)
    unit = 10.0 ** (floor(log10(least)) - 3)
    return float(f"{ceil(least / unit) * unit:.4g}")


def updates_for(budget: float, noise: float, delta: float = DELTA) -> int:
    """The most updates with this noise that cost at most the wanted ε.

    >>> updates_for(8.0, noise=4.0), updates_for(1.0, noise=1.0)
    (44, 0)
    """
    return floor((noise / _noise_of_one(budget, delta)) ** 2)


def _noise_of_one(budget: float, delta: float) -> float:
    """The least noise with which one update costs at most the wanted ε."""
    return _root(lambda noise: epsilon(noise, delta=delta) - budget, MIN_NOISE)


def audited_epsilon(updates: Mapping[float, int], delta: float = DELTA, max_updates: int = 100_000) -> float | None:
    """The ε of updates, counted by noise, from dp-accounting; None without that extra, or if that would take minutes.

    Its accountant of privacy loss distributions discretises losses in intervals. These are set relative to ε, so that
    it takes seconds and is less than a thousandth above the exact value for any ε.
    """
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.pld import PLDAccountant
    except ImportError:
        return None
    count = sum(updates.values())
    if not count:
        return 0.0
    if count > max_updates:
        return None
    exact = epsilon(combined(updates), delta=delta)
    interval = min(1e-3 * max(exact, 0.1) / sqrt(count), 100.0)
    accountant = PLDAccountant(value_discretization_interval=interval)
    for noise, times in updates.items():
        accountant.compose(GaussianDpEvent(noise), times)
    return float(accountant.get_epsilon(delta))


def _root(excess: Callable[[float], float], low: float) -> float:
    """The first root of a falling function, from `low` on; `low` if it is already at or below 0."""
    if excess(low) <= 0:
        return low
    high = max(2 * low, 1.0)
    while excess(high) > 0:
        high *= 2
    return float(scipy.optimize.brentq(excess, low, high))


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
        return _add_noise(rows, privacy, scale_within(privacy.clip, rows.values()), key, round)
    norm = float(torch.stack([update.double().norm() for update in updates.values()]).norm())
    scale = min(1.0, privacy.clip / norm) if norm else 1.0
    return {slot: update * scale for slot, update in updates.items()}


def _add_noise(
    rows: Mapping[Slot, Tensor], privacy: Privacy, scale: float, key: bytes, round: int
) -> dict[Slot, Tensor]:
    """The scaled update in whole steps of a lattice that does not depend on data, plus whole steps of noise.

    The noise depends on the key, the round and these steps. So an update gets the same noise whenever it is sent again,
    and a different update gets unrelated noise: two messages never reveal the difference of what they hide.
    """
    if len(key) != KEY_BYTES:
        raise ValueError(f"expected a key of {KEY_BYTES} bytes, got {len(key)}")
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
        raise ValueError("expected a finite update, which can be clipped, got NaN or infinite values")
    almost = 1 - 2.0**-20  # float64 gives the norm of up to 2³² values more precisely than this
    return min(1.0, almost * clip / norm) if norm else 1.0


def in_steps(row: Tensor, scale: float, step: float) -> Iterator[NDArray[np.int64]]:
    """Convert a scaled row to whole steps, piece by piece; truncated towards zero, so that it does not get longer."""
    return ((piece * (scale / step)).astype(np.int64) for piece in _pieces(row))


def _pieces(row: Tensor) -> Iterator[NDArray[np.float64]]:
    return (piece.double().numpy() for piece in torch.split(row.detach().cpu(), CHUNK))


# How bins of WIDTH steps are proposed and steps accepted. Coins below a column's threshold select its own bin, others
# its alias. Then come the rate at which each bin's innermost step is accepted, and the curvature 1/2s².
AliasTable = tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.float64], float]


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
        deviates = np.empty(count, np.int64)
        filled = 0
        while filled < count:
            words = np.frombuffer(self._cipher.update(bytes(16 * (count - filled))), "<u8")
            filled += _compiled_fill()(deviates[filled:], words, *self._table)
        return deviates


@cache
def _compiled_fill() -> Callable[..., int]:
    from numba import njit  # a compiler, which takes a second to import

    compiled: Callable[..., int] = njit(cache=True, nogil=True)(_fill)
    return compiled


def _fill(deviates, words, threshold, alias, highest, curvature):  # type: ignore[no-untyped-def]
    """Use two words per attempt; returns how many attempts were accepted.

    Every attempt does the same work whatever its outcome, and the number of rejections is independent of the accepted
    values, so the time taken reveals nothing about the noise.
    """
    filled = 0
    for attempt in range(len(deviates)):
        word, coin = words[2 * attempt], words[2 * attempt + 1]
        bin = np.int64(word >> np.uint64(64 - COLUMN_BITS))
        if word & np.uint64(CAPACITY - 1) >= threshold[bin]:
            bin = alias[bin]
        offset = np.int64(word >> np.uint64(COIN_BITS)) & (WIDTH - 1)
        start = bin * WIDTH
        step = start + offset
        sign = 1 - 2 * np.int64(word >> np.uint64(COIN_BITS + OFFSET_BITS) & np.uint64(1))
        acceptance = highest[bin] * exp(-(offset * (start + step)) * curvature)
        deviates[filled] = sign * step
        filled += (np.float64(coin) * 2.0**-64 < acceptance) & ((step != 0) | (sign > 0))  # 0 has one sign
    return filled


@lru_cache(maxsize=8)
def alias_table(deviation: float) -> AliasTable:
    """Weight bins by the probability of their innermost steps, in whole parts of COLUMNS · CAPACITY."""
    with localcontext(prec=50):
        curvature = 1 / (2 * Decimal(deviation) ** 2)
        inner = [(-curvature * (WIDTH * bin) ** 2).exp() for bin in range(COLUMNS)]
        share = COLUMNS * CAPACITY / sum(inner)
        weights = [0] + [int(share * height) + 1 for height in inner[1:]]
        weights[0] = COLUMNS * CAPACITY - sum(weights)  # below its share, so that all others are above theirs
        factors = [weights[0] / Decimal(weight) for weight in weights]
        highest = [float(height * factor) for height, factor in zip(inner, factors, strict=True)]
        threshold, alias = _aliases(weights)
        return threshold, alias, np.array(highest), float(curvature)


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
