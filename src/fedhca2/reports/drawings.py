"""Drawings of a comparison as SVG: average ranks with their critical difference, and a column over a swept setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from math import ceil, floor, inf, isfinite, log10, sqrt

import numpy as np
from scipy.special import fdtrc

from fedhca2.reports.comparison import DELTA_M, LEVEL, Comparison, SeedScores
from fedhca2.reports.figures import COLOURS
from fedhca2.reports.page import fill
from fedhca2.run_folder.reader import Array

RANKS_FILE, SWEEP_FILE = "critical-difference.svg", "sweep.svg"
RANKS_TITLE = "Average ranks and their critical difference"
LETTER = 7.2  # the width of a letter in pixels
EDGES = LEFT, RIGHT, TOP, BOTTOM = 70, 530, 40, 290  # pixels: the axes of a sweep


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
        groups: list[list[str]] = []
        for i, name in enumerate(names):
            group = [other for other in names[i:] if self.ranks[other] - self.ranks[name] <= self.critical_difference]
            if len(group) > 1 and (not groups or group[-1] != groups[-1][-1]):
                groups.append(group)
        return groups


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


def ranking_of(comparison: Comparison) -> Ranking | None:
    """Rank the methods in every column with every seed that all of them have."""
    scores: dict[str, list[float]] = {method: [] for method in comparison.entries}
    for column in (column for column in comparison.columns if not column.is_gain):
        cells = {method: row[column].by_seed for method, row in comparison.entries.items()}
        for seed in sorted(set.intersection(*(set(cell) for cell in cells.values()))):
            if all(isfinite(cell[seed]) for cell in cells.values()):
                for method, cell in cells.items():
                    scores[method].append(cell[seed] if column.higher_is_better else -cell[seed])
    return rank(scores)


def ranking_note(ranking: Ranking) -> str:
    """How to read the figure, and what it assumes."""
    p = "p < 0.001" if ranking.p_value < 0.001 else f"p = {ranking.p_value:.3f}"
    difference = "a difference" if ranking.p_value < LEVEL else "no difference"
    return (
        f"Mean rank (1 is best) over {ranking.rankings} rankings, one per column and seed. Friedman's test finds "
        f"{difference} between the methods ({p}). Methods joined by a bar are closer than the critical difference "
        f"(Nemenyi's test at {100 * LEVEL:g}%). Both tests assume independent rankings. The columns of a run share "
        "encoders and the seeds share a data set, so they find differences too easily."
    )


def draw_ranks(ranking: Ranking) -> str:
    """Draw the average ranks on an axis, with a bar over methods that do not differ, as Demšar (2006) does."""
    labels = [f"{name} {value:.2f}" for name, value in ranking.ranks.items()]
    start, step = 30 + LETTER * max(map(len, labels)), min(60, 720 / (len(labels) - 1))
    about = {"ranking": ranking, "labels": labels, "title": RANKS_TITLE}
    return fill("ranks.svg", x=lambda rank: start + step * (rank - 1), step=step, **about)


def draw_sweep(
    setting: str,
    curves: Mapping[str, Mapping[str, str]],
    comparison: Comparison,
    measure: tuple[str, str] | None = None,
) -> str:
    """Draw a curve for each method: means over the values with their standard deviation, and a point for each seed.

    :param curves: the row of the comparison by method and value; a method with one row for all values is a dashed line.
    :param measure: the group and the task of a column, instead of Δm.
    """
    if measure:
        column = next(column for column in comparison.columns if (column.group, column.task) == measure)
    else:
        rows = [comparison.entries[label] for labels in curves.values() for label in labels.values()]
        has_gain = DELTA_M in comparison.columns and any(isfinite(row[DELTA_M].mean) for row in rows)
        column = DELTA_M if has_gain else comparison.columns[0]
    entries = {
        name: {value: comparison.entries[label][column] for value, label in labels.items()}
        for name, labels in curves.items()
    }
    about = f"{column.heading if column.is_gain else f'{column.group}: {column.heading}'} over {setting}"
    x, several = _positions(list(dict.fromkeys(value for own in entries.values() for value in own))), len(entries) > 1
    y, ticks = _vertical_axis([entry for own in entries.values() for entry in own.values()])
    levels = {}  # means and deviations of what no value changes
    for name, own in entries.items():
        if len(own) > 1 and len(set(curves[name].values())) == 1:
            deviation = (entry := next(iter(own.values()))).deviation
            levels[name] = entry.mean, deviation if deviation is not None and isfinite(deviation) else 0.0
    means = {name: "; ".join(f"{value}: {one.mean:.4g}" for value, one in own.items()) for name, own in entries.items()}
    scores = " | ".join(f"{name}: {text}" if several else text for name, text in means.items())
    colours = dict(zip(entries, cycle(COLOURS if several else ["#222"]), strict=False))
    width = 560 + (LETTER * max(map(len, entries)) + 40 if several else 0)
    words = {"setting": setting, "about": about, "description": f"{about}: {scores}"}
    axes = {"x": x, "y": y, "ticks": ticks, "edges": EDGES}
    return fill("sweep.svg", entries=entries, levels=levels, colours=colours, width=width, **words, **axes)


def _positions(values: list[str]) -> dict[str, float]:
    """Horizontal positions: to scale if all values are numbers, logarithmic if they differ widely, else in order."""
    order = [float(number) for number in range(len(values))]
    try:
        scale = [float(value) for value in values]
    except ValueError:
        scale = order
    if not all(map(isfinite, scale)) or len(set(scale)) < len(scale):
        scale = order
    if min(scale) > 0 and max(scale) >= 100 * min(scale):
        scale = [log10(at) for at in scale]
    low, room = min(scale), (max(scale) - min(scale)) or 1.0
    ends = (LEFT + 30, RIGHT - 30)
    return {value: ends[0] + (ends[1] - ends[0]) * (at - low) / room for value, at in zip(values, scale, strict=True)}


def _vertical_axis(entries: Sequence[SeedScores]) -> tuple[Callable[[float], float], dict[str, float]]:
    """The position of a value between the smallest and the largest mark, and those of round numbers."""
    ends = [entry.mean + sign * (entry.deviation or 0.0) for entry in entries for sign in (-1, 1)]
    finite = [value for value in [*ends, *(v for entry in entries for v in entry.values)] if isfinite(value)] or [0.0]
    room = max(max(finite) - min(finite), 1e-3 * max(map(abs, finite)), 1e-9)
    low, high = min(finite) - 0.05 * room, max(finite) + 0.05 * room

    def y(value: float) -> float:
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    step = tick_step(high - low, 5)
    numbers = [step * number for number in range(ceil(low / step), floor(high / step) + 1)]
    return y, {f"{number:.{max(0, -floor(log10(step)))}f}": y(number) for number in numbers}


def tick_step(room: float, ticks: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten that divides an axis into `ticks` steps or fewer.

    >>> tick_step(17.0, 5)
    5.0
    """
    power = 10.0 ** floor(log10(room / ticks))
    return next(times * power for times in (1, 2, 5, 10) if room <= ticks * times * power)
