"""Drawings of a comparison as SVG: average ranks with their critical difference, and a column over a swept setting."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from math import ceil, floor, inf, isfinite, log10, sqrt

import numpy as np
from scipy.special import fdtrc

from fedhca2.reports.comparison import DELTA_M, LEVEL, Column, Comparison, SeedScores
from fedhca2.reports.figures import COLOURS
from fedhca2.run_folder.reader import Array

RANKS_FILE, SWEEP_FILE = "critical-difference.svg", "sweep.svg"
RANKS_TITLE = "Average ranks and their critical difference"
LETTER, ROW = 7.2, 22  # pixels: the width of a letter, and the height of a line of text
LEFT, RIGHT, TOP, BOTTOM = 70, 530, 40, 290  # pixels: the axes of a sweep


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
    labels, count = [f"{name} {value:.2f}" for name, value in ranking.ranks.items()], len(ranking.ranks)
    side, top = 30 + LETTER * max(map(len, labels)), 62  # the margins of the axis
    step = min(60, 720 / (count - 1))

    def x(value: float) -> float:
        return side + step * (value - 1)

    end = x(1 + ranking.critical_difference)
    parts = [svg_line(x(1), 22, end, 22), *(svg_line(edge, 18, edge, 26) for edge in (x(1), end))]
    parts += [svg_text(x(1), 13, f"critical difference {ranking.critical_difference:.2f}", "start")]
    parts += [svg_line(x(1), top, x(count), top)]
    for tick in range(1, count + 1):
        parts += [svg_line(x(tick), top - 5, x(tick), top), svg_text(x(tick), top - 10, str(tick), "middle")]
    groups = ranking.groups
    for number, group in enumerate(groups):
        y = top + 8 * (number + 1)
        parts.append(svg_line(x(ranking.ranks[group[0]]) - 4, y, x(ranking.ranks[group[-1]]) + 4, y, 4))
    first, half = top + 8 * (len(groups) + 1) + ROW, (count + 1) // 2
    for number, (label, value) in enumerate(zip(labels, ranking.ranks.values(), strict=True)):
        left = number < half
        y = first + ROW * (number if left else count - 1 - number)
        edge, anchor, shift = (side - 12, "end", -4) if left else (x(count) + 12, "start", 4)
        parts += [svg_line(x(value), top, x(value), y), svg_line(x(value), y, edge, y)]
        parts.append(svg_text(edge + shift, y + 4, label, anchor))
    width = 2 * side + step * max(count - 1, ranking.critical_difference)
    return svg_drawing(width, first + ROW * half, f"{RANKS_TITLE}: {', '.join(labels)}", parts)


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
    column = _column(comparison, curves, measure)
    entries = {
        name: {value: comparison.entries[label][column] for value, label in labels.items()}
        for name, labels in curves.items()
    }
    about = f"{column.heading if column.is_gain else f'{column.group}: {column.heading}'} over {setting}"
    x, several = _positions(list(dict.fromkeys(value for own in entries.values() for value in own))), len(entries) > 1
    y, parts = _vertical_axis([entry for own in entries.values() for entry in own.values()])
    parts = [svg_text(280, 22, about, "middle"), svg_text(280, 332, setting, "middle"), *parts]
    parts += [svg_text(at, BOTTOM + 18, value, "middle") for value, at in x.items()]
    for number, (name, own) in enumerate(entries.items()):
        level = len(own) > 1 and len(set(curves[name].values())) == 1
        shapes = _level(y, next(iter(own.values()))) if level else _curve(x, y, own)
        if several:  # a key on the right
            at = TOP + ROW * number
            stroke = svg_line(RIGHT + 8, at, RIGHT + 34, at, 2)
            shapes += [_dash(stroke) if level else stroke, svg_text(RIGHT + 40, at + 4, name, "start")]
        colour = COLOURS[number % len(COLOURS)] if several else "#222"
        parts += [f'<g fill="{colour}" stroke="{colour}">', *shapes, "</g>"]
    means = {name: "; ".join(f"{value}: {one.mean:.4g}" for value, one in own.items()) for name, own in entries.items()}
    scores = " | ".join(f"{name}: {text}" if several else text for name, text in means.items())
    width = 560 + (LETTER * max(map(len, entries)) + 40 if several else 0)
    return svg_drawing(width, max(340, TOP + ROW * len(entries)), f"{about}: {scores}", parts)


def _column(comparison: Comparison, curves: Mapping[str, Mapping[str, str]], measure: tuple[str, str] | None) -> Column:
    """The column of a group's task; without one Δm, or the first column if no Δm is known."""
    if measure:
        return next(column for column in comparison.columns if (column.group, column.task) == measure)
    rows = [comparison.entries[label] for labels in curves.values() for label in labels.values()]
    has_gain = DELTA_M in comparison.columns and any(isfinite(row[DELTA_M].mean) for row in rows)
    return DELTA_M if has_gain else comparison.columns[0]


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


def _vertical_axis(entries: Sequence[SeedScores]) -> tuple[Callable[[float], float], list[str]]:
    """The position of a value between the smallest and the largest mark, and both axes with round numbers."""
    ends = [entry.mean + sign * (entry.deviation or 0.0) for entry in entries for sign in (-1, 1)]
    finite = [value for value in [*ends, *(v for entry in entries for v in entry.values)] if isfinite(value)] or [0.0]
    room = max(max(finite) - min(finite), 1e-3 * max(map(abs, finite)), 1e-9)
    low, high = min(finite) - 0.05 * room, max(finite) + 0.05 * room

    def y(value: float) -> float:
        return BOTTOM - (value - low) / (high - low) * (BOTTOM - TOP)

    step, parts = tick_step(high - low, 5), [svg_line(LEFT, BOTTOM, RIGHT, BOTTOM), svg_line(LEFT, TOP, LEFT, BOTTOM)]
    for tick in (step * number for number in range(ceil(low / step), floor(high / step) + 1)):
        label = f"{tick:.{max(0, -floor(log10(step)))}f}"
        parts += [svg_line(LEFT - 5, y(tick), LEFT, y(tick)), svg_text(LEFT - 8, y(tick) + 4, label, "end")]
    return y, parts


def _curve(x: Mapping[str, float], y: Callable[[float], float], entries: Mapping[str, SeedScores]) -> list[str]:
    """Lines between means, a dot for each seed, and whiskers of one standard deviation."""
    means = [(x[value], y(entry.mean)) for value, entry in entries.items() if isfinite(entry.mean)]
    parts = [svg_line(*start, *end, 2) for start, end in pairwise(means)]
    for at, entry in ((x[value], entry) for value, entry in entries.items()):
        heights = [f"{y(value):.1f}" for value in entry.values if isfinite(value)]
        parts += [f'<circle cx="{at:.1f}" cy="{cy}" r="3" fill-opacity="0.5" stroke="none"/>' for cy in heights]
        if entry.deviation is not None and isfinite(entry.deviation):
            low, high = y(entry.mean - entry.deviation), y(entry.mean + entry.deviation)
            parts += [svg_line(at, low, at, high), *(svg_line(at - 5, end, at + 5, end) for end in (low, high))]
    return parts


def _level(y: Callable[[float], float], entry: SeedScores) -> list[str]:
    """A dashed line at the mean of what no value changes, in a band of its standard deviation."""
    if not isfinite(entry.mean):
        return []
    spread = entry.deviation if entry.deviation is not None and isfinite(entry.deviation) else 0.0
    top, bottom = y(entry.mean + spread), y(entry.mean - spread)
    size = f'width="{RIGHT - LEFT}" height="{bottom - top:.1f}"'
    band = [f'<rect x="{LEFT}" y="{top:.1f}" {size} fill-opacity="0.12" stroke="none"/>'] if spread else []
    return [*band, _dash(svg_line(LEFT, y(entry.mean), RIGHT, y(entry.mean), 2))]


def _dash(line: str) -> str:
    return f'<g stroke-dasharray="6 4">{line}</g>'


def svg_drawing(width: float, height: float, description: str, parts: Sequence[str]) -> str:
    """A drawing on white paper, so that it is readable on a dark page too, with a text for those who cannot see it."""
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}"'
    look = 'font-family="system-ui, sans-serif" font-size="13" fill="#222" stroke="#222" role="img"'
    paper = '<rect width="100%" height="100%" fill="#fff" stroke="none"/>'
    head = [f'{opening} height="{height:.0f}" {look}>', f"<title>{escape(description)}</title>", paper]
    return "\n".join([*head, *parts, "</svg>\n"])


def svg_line(x1: float, y1: float, x2: float, y2: float, width: int = 1) -> str:
    """A line."""
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke-width="{width}"/>'


def svg_text(x: float, y: float, text: str, anchor: str) -> str:
    """A text that starts, ends or has its middle at x."""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" stroke="none">{escape(text)}</text>'


def tick_step(room: float, ticks: int) -> float:
    """The smallest 1, 2 or 5 times a power of ten that divides an axis into `ticks` steps or fewer.

    >>> tick_step(17.0, 5)
    5.0
    """
    power = 10.0 ** floor(log10(room / ticks))
    return next(times * power for times in (1, 2, 5, 10) if room <= ticks * times * power)
