"""Δm: how much better a federation does than training alone, averaged over everything that it measures."""

from collections.abc import Mapping
from math import nan

Scores = Mapping[str, Mapping[str, float]]


def relative_gain(value: float, baseline: float, higher_is_better: bool) -> float:
    r"""Gain over the baseline in %, $100\,(-1)^l (M - M_0)/M_0$ with l = 1 where lower is better.

    NaN where the baseline is 0: no ratio exists.

    >>> relative_gain(55.0, 50.0, higher_is_better=True), relative_gain(55.0, 50.0, higher_is_better=False)
    (10.0, -10.0)
    """
    if baseline == 0:
        return nan
    gain = 100 * (value - baseline) / baseline
    return gain if higher_is_better else -gain


def delta_m(scores: Scores, baseline: Scores, higher_is_better: Mapping[str, bool]) -> float:
    r"""Mean relative gain in % over all (client, task) pairs, $\Delta m = \frac{1}{T}\sum_t$ `relative_gain`.

    >>> delta_m({"a": {"semseg": 55.0, "depth": 0.9}}, {"a": {"semseg": 50.0, "depth": 1.0}},
    ...         {"semseg": True, "depth": False})
    10.0
    """
    pairs = [(client, task) for client, tasks in scores.items() for task in tasks]
    expected = [(client, task) for client, tasks in baseline.items() for task in tasks]
    if not pairs or set(pairs) != set(expected):
        raise ValueError(f"scores should be of the baseline's clients and tasks {expected}, found {pairs}")
    gains = [relative_gain(scores[c][t], baseline[c][t], higher_is_better[t]) for c, t in pairs]
    return sum(gains) / len(gains)
