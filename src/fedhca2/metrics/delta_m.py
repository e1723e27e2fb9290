"""Δm: how much better a federation is than training alone, averaged over everything it measures."""

from collections.abc import Mapping, Sequence
from math import nan

Scores = Mapping[str, Mapping[str, float]]


def relative_gain(value: float, baseline: float, higher_is_better: bool) -> float:
    r"""Gain over the baseline in %, $100\,(-1)^l (M - M_0)/M_0$ with l = 1 if lower is better.

    NaN if the baseline is 0: no ratio exists.

    >>> relative_gain(55.0, 50.0, higher_is_better=True), relative_gain(55.0, 50.0, higher_is_better=False)
    (10.0, -10.0)
    """
    if baseline == 0:
        return nan
    gain = 100 * (value - baseline) / baseline
    return gain if higher_is_better else -gain


def rise(score: float, first: float, higher_is_better: bool) -> float:
    """How much better a score is than the first one, from -1 to 1: their difference as a share of their sum.

    >>> rise(3.0, 1.0, True), rise(3.0, 1.0, False), rise(0.0, 0.0, True)
    (0.5, -0.5, 0.0)
    """
    total = abs(score) + abs(first)
    return (score - first) / total * (1 if higher_is_better else -1) if total else 0.0


def delta_m(
    scores: Scores, baseline: Scores, higher_is_better: Mapping[str, bool], kinds: Mapping[str, str] | None = None
) -> float:
    r"""Mean relative gain in % over the columns of a table, $\Delta m = \frac{1}{T}\sum_t$ `relative_gain`.

    A column is a task of the clients of one kind, and its value is the mean over these clients. Without `kinds`, every
    client is its own kind, so the mean is over all (client, task) pairs.

    >>> ours, alone = {"a": {"semseg": 55.0}, "b": {"semseg": 20.0}}, {"a": {"semseg": 50.0}, "b": {"semseg": 10.0}}
    >>> delta_m(ours, alone, {"semseg": True}, kinds={"a": "road", "b": "road"})
    25.0
    >>> delta_m(ours, alone, {"semseg": True})
    55.0
    """
    pairs = [(client, task) for client, tasks in scores.items() for task in tasks]
    expected = [(client, task) for client, tasks in baseline.items() for task in tasks]
    if not pairs or set(pairs) != set(expected):
        raise ValueError(f"expected scores of the baseline's clients and tasks {expected}, got {pairs}")
    columns: dict[tuple[str, str], list[str]] = {}
    for client, task in pairs:
        columns.setdefault((kinds[client] if kinds else client, task), []).append(client)
    gains = [
        relative_gain(_mean(scores, clients, task), _mean(baseline, clients, task), higher_is_better[task])
        for (_, task), clients in columns.items()
    ]
    return sum(gains) / len(gains)


def _mean(scores: Scores, clients: Sequence[str], task: str) -> float:
    return sum(scores[client][task] for client in clients) / len(clients)
