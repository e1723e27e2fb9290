"""The figure of a sweep: Δm, or the first score, over the values of one setting."""

from collections.abc import Mapping
from itertools import pairwise
from math import ceil, floor, isfinite, log10

from fedhca2.reports.comparison.gather import DELTA_M, Comparison, Entry
from fedhca2.reports.comparison.layouts import heading
from fedhca2.reports.comparison.svg import svg_drawing, svg_line, svg_text, tick_step

FILE = "sweep.svg"
WIDTH, HEIGHT = 560, 340
LEFT, RIGHT, TOP, BOTTOM = 70, 30, 40, 50  # margins
TICKS = 5
WIDE = 100  # times the smallest value, from which the axis is logarithmic


def to_svg(setting: str, labels: Mapping[str, str], comparison: Comparison) -> str:
    """Draw the mean of each value's row with its standard deviation, and a point for each seed.

    `labels` has the row of the comparison by value.
    """
    known = DELTA_M in comparison.columns and any(
        isfinite(comparison.entries[label][DELTA_M].mean) for label in labels.values()
    )
    column = DELTA_M if known else comparison.columns[0]
    entries = {value: comparison.entries[label][column] for value, label in labels.items()}
    title = heading(column) if column.is_gain else f"{column.group}: {heading(column)}"
    x, y = _positions(list(entries)), _Axis(list(entries.values()))
    parts = [
        svg_text(WIDTH / 2, 22, f"{title} over {setting}", "middle"),
        svg_text(WIDTH / 2, HEIGHT - 8, setting, "middle"),
    ]
    parts += [
        svg_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM),
        svg_line(LEFT, TOP, LEFT, HEIGHT - BOTTOM),
    ]
    for tick in y.ticks:
        parts += [svg_line(LEFT - 5, y(tick), LEFT, y(tick)), svg_text(LEFT - 8, y(tick) + 4, f"{tick:.3g}", "end")]
    means = [(x[value], y(entry.mean)) for value, entry in entries.items() if isfinite(entry.mean)]
    parts += [svg_line(*start, *end, 2) for start, end in pairwise(means)]
    for value, entry in entries.items():
        parts.append(svg_text(x[value], HEIGHT - BOTTOM + 18, value, "middle"))
        parts += _marks(x[value], y, entry)
    told = "; ".join(f"{value}: {entry.mean:.4g}" for value, entry in entries.items())
    return svg_drawing(WIDTH, HEIGHT, f"{title} over {setting}: {told}", parts)


def _marks(x: float, y: "_Axis", entry: Entry) -> list[str]:
    dots = [
        f'<circle cx="{x:.1f}" cy="{y(value):.1f}" r="3" fill-opacity="0.5" stroke="none"/>'
        for value in entry.values
        if isfinite(value)
    ]
    if entry.deviation is None or not isfinite(entry.deviation):
        return dots
    low, high = y(entry.mean - entry.deviation), y(entry.mean + entry.deviation)
    return [*dots, svg_line(x, low, x, high), *(svg_line(x - 5, end, x + 5, end) for end in (low, high))]


class _Axis:
    """Vertical positions, from the smallest to the largest mark."""

    def __init__(self, entries: list[Entry]) -> None:
        spread = [entry.deviation or 0.0 for entry in entries]
        ends = [entry.mean + sign * each for entry, each in zip(entries, spread, strict=True) for sign in (-1, 1)]
        known = [value for value in [*ends, *(v for entry in entries for v in entry.values)] if isfinite(value)] or [
            0.0
        ]
        room = max(max(known) - min(known), 1e-3 * max(map(abs, known)), 1e-9)
        self.low, self.high = min(known) - 0.05 * room, max(known) + 0.05 * room

    @property
    def ticks(self) -> list[float]:
        """Round numbers on the axis."""
        step = tick_step(self.high - self.low, TICKS)
        return [step * number for number in range(ceil(self.low / step), floor(self.high / step) + 1)]

    def __call__(self, value: float) -> float:
        return HEIGHT - BOTTOM - (value - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)


def _positions(values: list[str]) -> dict[str, float]:
    """Horizontal positions: to scale if all values are numbers, logarithmic if they differ widely, else in order."""
    try:
        places = [float(value) for value in values]
    except ValueError:
        places = [float(number) for number in range(len(values))]
    if not all(map(isfinite, places)) or len(set(places)) < len(places):
        places = [float(number) for number in range(len(values))]
    if min(places) > 0 and max(places) >= WIDE * min(places):
        places = [log10(place) for place in places]
    low, room = min(places), (max(places) - min(places)) or 1.0
    inside = WIDTH - LEFT - RIGHT - 60
    return {value: LEFT + 30 + inside * (place - low) / room for value, place in zip(values, places, strict=True)}
