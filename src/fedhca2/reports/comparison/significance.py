"""What is beyond chance: gains over Local from seed to seed, and ranks of methods over all columns."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite, sqrt

import numpy as np
from scipy.special import fdtrc, stdtr

from fedhca2.run_folder.reader import Array

LEVEL = 0.05
FEWEST = 3  # seeds: two say nothing about how much gains vary


def gain_p_values(gains: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """p of each method's gains over Local, one per seed: a two-sided paired t-test, corrected by Holm (1979).

    A gain is a difference from Local with the same seed, so the paired test is the one-sample test against 0. Rank
    tests cannot reach 5 % with fewer than six seeds. Methods with fewer than three seeds or unknown gains have no p.

    >>> {name: round(p, 4) for name, p in gain_p_values({"a": [1, 2, 3], "b": [4.9, 5, 5.1], "c": [1, 2]}).items()}
    {'a': 0.0742, 'b': 0.0003}
    """
    tested = {name: values for name, values in gains.items() if len(values) >= FEWEST and all(map(isfinite, values))}
    return holm({name: _t_test(values) for name, values in tested.items()})


def _t_test(values: Sequence[float]) -> float:
    """The two-sided p of a mean that should be 0."""
    mean, error = float(np.mean(values)), float(np.std(values, ddof=1)) / sqrt(len(values))
    if not error:
        return 0.0 if mean else 1.0
    return float(2 * stdtr(len(values) - 1, -abs(mean) / error))


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Holm's correction: the smallest p times their number, the next times one less, and so on, never decreasing.

    >>> holm({"a": 0.01, "b": 0.04, "c": 0.03})
    {'a': 0.03, 'b': 0.06, 'c': 0.06}
    """
    adjusted, least = dict[str, float](), 0.0
    for done, name in enumerate(sorted(p_values, key=p_values.__getitem__)):
        least = max(least, min(1.0, (len(p_values) - done) * p_values[name]))
        adjusted[name] = least
    return {name: adjusted[name] for name in p_values}


@dataclass(frozen=True)
class Ranking:
    """Average ranks of methods, 1 is the best, and how far apart they are if the difference is not chance."""

    ranks: Mapping[str, float]  # the best first
    rankings: int  # how many were averaged
    p_value: float  # of Friedman's test, that all methods are equal
    critical_difference: float

    @property
    def groups(self) -> list[list[str]]:
        """The largest groups of methods that do not differ: all of them if Friedman's test finds no difference."""
        names = list(self.ranks)
        if self.p_value >= LEVEL:
            return [names]
        reach = [
            [other for other in names[first:] if self.ranks[other] - self.ranks[name] <= self.critical_difference]
            for first, name in enumerate(names)
        ]
        ends = [names.index(group[-1]) for group in reach]
        return [group for i, group in enumerate(reach) if len(group) > 1 and (i == 0 or ends[i] > ends[i - 1])]


def rank(scores: Mapping[str, Sequence[float]]) -> Ranking | None:
    """Rank methods by scores on the same problems, higher is better; None with fewer than 3 methods or 2 problems.

    Friedman's test in the form of Iman and Davenport, then Nemenyi's, as Demšar (JMLR 2006) describes them. Ties get
    their mean rank, and make the test more careful.
    """
    from scipy.stats import rankdata, studentized_range  # takes a second to import

    table: Array = np.array(list(scores.values()), dtype=float).reshape(len(scores), -1)
    k, n = table.shape
    if k < 3 or n < 2:
        return None
    means = rankdata(-table, axis=0).mean(axis=1)
    chi_square = 12 * n / (k * (k + 1)) * (float(np.sum(means**2)) - k * (k + 1) ** 2 / 4)
    left = n * (k - 1) - chi_square
    f = (n - 1) * chi_square / left if left > 1e-9 else inf
    critical = studentized_range.ppf(1 - LEVEL, k, inf) / sqrt(2) * sqrt(k * (k + 1) / (6 * n))
    ranks = sorted(zip(scores, means.tolist(), strict=True), key=lambda pair: pair[1])
    return Ranking(dict(ranks), n, float(fdtrc(k - 1, (k - 1) * (n - 1), f)), float(critical))
