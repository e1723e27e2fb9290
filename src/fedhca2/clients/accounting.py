"""The cost of noised updates: the ε of (ε, δ)-differential privacy, of sent or planned updates."""

from collections.abc import Callable, Mapping
from math import ceil, exp, floor, inf, log10, sqrt

import scipy  # imports its parts when they are used

DELTA = 1e-5
LEAST = 1e-3  # less noise than this hides nothing: one update would cost an ε of 500,000
MANY = 100_000  # updates that dp-accounting can handle within seconds
FINENESS, WIDEST = 1e-3, 100.0  # dp-accounting's intervals: relative to ε, and the largest


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
        kept = exp(candidate + float(scipy.special.log_ndtr(-mu / 2 - candidate / mu)))
        return exp(float(scipy.special.log_ndtr(mu / 2 - candidate / mu))) - kept - delta

    return _root(excess, 0.0)


def combined(updates: Mapping[float, int]) -> float:
    r"""The noise of one update that reveals as much as all of these, counted by noise: $(\sum n_i/\sigma_i^2)^{-1/2}$.

    >>> combined({2.0: 4}), combined({})
    (1.0, inf)
    """
    told = sum(count * noise**-2 for noise, count in updates.items())
    return 1 / sqrt(told) if told else inf


def noise_for(wanted: float, updates: int, delta: float = DELTA) -> float:
    """The least noise with which this many updates cost at most the wanted ε, rounded up to four digits.

    >>> noise_for(8.0, updates=100)
    6.003
    """
    least = sqrt(updates) * _noise_of_one(wanted, delta)
    place = 10.0 ** (floor(log10(least)) - 3)
    return float(f"{ceil(least / place) * place:.4g}")


def updates_for(wanted: float, noise: float, delta: float = DELTA) -> int:
    """The most updates with this noise that cost at most the wanted ε.

    >>> updates_for(8.0, noise=4.0), updates_for(1.0, noise=1.0)
    (44, 0)
    """
    return floor((noise / _noise_of_one(wanted, delta)) ** 2)


def _noise_of_one(wanted: float, delta: float) -> float:
    """The least noise with which one update costs at most the wanted ε."""
    return _root(lambda noise: epsilon(noise, delta=delta) - wanted, LEAST)


def audited_epsilon(updates: Mapping[float, int], delta: float = DELTA) -> float | None:
    """The ε of updates, counted by noise, from dp-accounting; None without that extra or for more than MANY updates.

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
    if count > MANY:
        return None
    exact = epsilon(combined(updates), delta=delta)
    interval = min(FINENESS * max(exact, 0.1) / sqrt(count), WIDEST)
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
