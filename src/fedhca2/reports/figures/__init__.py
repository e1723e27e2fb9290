"""Figures of a run, as plain data that plotly.js draws, and what they share: colours, lines, axes, matrices."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, ClassVar

# Each has a contrast of at least 3 on the light page and on the dark one; the first ones can be told apart by everyone.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#B0509A",
    "#A67C00",
    "#8F6BD1",
    "#0E93A8",
    "#E0405E",
    "#5B8C2A",
    "#96705A",
)
GREY = "#7F7F7F"  # of training alone, and of what belongs to no client
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "pentagon", "hexagram", "bowtie")
STEPS = 60  # most steps of a slider
NUMBERS = 150_000  # most numbers in all steps of a slider
LABELLED = 12  # a matrix with at most this many rows shows its numbers
LEAST_SPAN = 0.1  # of an axis, relative to its values: smaller differences should look small
Trace = dict[str, Any]  # as plotly.js takes it
TEMPLATES = {"hovertemplate", "texttemplate"}  # texts of our own, with plotly's markup


@dataclass(frozen=True)
class Slider:
    """The labels of a slider, and the position at which it starts."""

    name: str
    labels: Sequence[str]
    start: int


@dataclass(frozen=True)
class Figure:
    """Traces and layout as plotly.js takes them, a title, and a sentence on how to read it.

    With sliders, `changes` holds what each combination of their positions changes, the last slider's first; each value
    in a change lists the new ones of the first traces.
    """

    id: str
    title: str
    note: str
    data: list[Trace]
    layout: dict[str, Any] = field(default_factory=dict)
    wide: bool = False
    sliders: Sequence[Slider] = ()
    changes: Sequence[dict[str, Any]] = ()
    kind: ClassVar[str] = "figure"

    @property
    def least_width(self) -> int:
        """The pixels that a heat map needs, so that the numbers in its cells can be read; 0 for other figures."""
        first = self.data[0] if self.data else {}
        if first.get("type") != "heatmap":
            return 0
        return max(520, 190 + 38 * len(first["x"])) if first.get("texttemplate") else 520

    def to_json(self) -> dict[str, Any]:
        """What the browser needs, with numbers rounded to six digits."""
        base = {"margin": {"l": 56, "r": 16, "t": 16, "b": 48}, "height": 320, "hovermode": "closest"}
        legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
        layout = {**base, "showlegend": False, "legend": legend, **self.layout}
        shown: dict[str, Any] = plain({"data": self.data, "layout": layout, "changes": list(self.changes)})
        return shown


def plain(value: Any, key: str = "") -> Any:
    """The same data with numbers rounded to six digits, None for non-finite ones, and no markup in texts.

    >>> plain({"x": [1.23456789, float("nan"), 3], "name": "<b>road</b>"})
    {'x': [1.23457, None, 3], 'name': '&lt;b&gt;road&lt;/b&gt;'}
    """
    if isinstance(value, dict):
        return {key: plain(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, key) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, str) and key not in TEMPLATES:
        return escape(value, quote=False)
    return value


def line(label: str, colour: str, x: Sequence[object], y: Sequence[float], **more: Any) -> Trace:
    """A curve of the client, kind or method of this label."""
    trace = {"type": "scatter", "mode": "lines+markers", "name": label, "meta": label, "x": list(x), "y": list(y)}
    look = {"line": {"color": colour, "width": 2}, "marker": {"size": 6, "color": colour}}
    return {**trace, **look, "hovertemplate": "%{x}: %{y:.4g}<extra>%{fullData.name}</extra>", **more}


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Titles of both axes."""
    return {
        "xaxis": {"title": {"text": x}, "automargin": True, "zeroline": False},
        "yaxis": {"title": {"text": y, "standoff": 8}, "automargin": True, "zeroline": False},
        **more,
    }


def round_axes(rounds: int, y: str, within: Sequence[float] | None = None) -> dict[str, Any]:
    """Axes whose x axis counts rounds in whole numbers, and whose y axis starts at 0 unless it has a range."""
    layout = axes("round", y)
    edge = 0.03 * rounds
    layout["xaxis"] |= {"tick0": 0, "dtick": max(1, math.ceil(rounds / 8)), "range": [-edge, rounds + edge]}
    layout["yaxis"] |= {"range": list(within)} if within else {"rangemode": "tozero"}
    return layout


def fitted(values: Iterable[float | None], least: float = LEAST_SPAN) -> list[float] | None:
    """A range around values, at least a tenth of their size, so that noise looks small; None without any value.

    >>> fitted([2.0, 4.0]), fitted([10.0, 10.0])
    ([1.88, 4.12], [9.44, 10.56])
    """
    known = [value for value in values if value is not None and math.isfinite(value)]
    if not known:
        return None
    low, high = min(known), max(known)
    span = max(high - low, least * max(abs(low), abs(high)), 1e-9)
    middle = (low + high) / 2
    return [round(middle - 0.56 * span, 12), round(middle + 0.56 * span, 12)]


def gain_bars(label: str, colour: str, names: Sequence[str], gains: Sequence[float], **more: Any) -> Trace:
    """Horizontal bars in one colour."""
    trace = {"type": "bar", "orientation": "h", "name": label, "y": list(names), "x": list(gains)}
    hover = "%{y}: %{x:+.2f} %<extra>%{fullData.name}</extra>"
    return {**trace, "marker": {"color": colour}, "cliponaxis": False, "hovertemplate": hover, **more}


def gain_axes(x: str, gains: Iterable[float], height: int, **more: Any) -> dict[str, Any]:
    """Axes of horizontal bars that start at 0, with room for a number at the end of each."""
    known = [0.0, *(gain for gain in gains if math.isfinite(gain))]
    low, high = min(known), max(known)
    room = 0.25 * (high - low or 1.0)
    layout = axes(x, "", height=height, **more)
    layout["xaxis"] |= {"zeroline": True, "range": [low - room * (low < 0), high + room * (high > 0 or low == 0)]}
    layout["yaxis"] |= {"autorange": "reversed", "type": "category", "showgrid": False}
    return layout


def values_of(traces: Iterable[Trace]) -> list[float | None]:
    """All y values of some traces."""
    return [value for trace in traces for value in trace["y"]]


def matrix(z: Any, rows: Sequence[str], columns: Sequence[object], **more: Any) -> Trace:
    """A heat map with its first row on top, in the theme's colours: those of two directions if it crosses 0."""
    trace = {"type": "heatmap", "z": z, "x": list(columns), "y": list(rows), "xgap": 1, "ygap": 1}
    if max(len(rows), len(columns)) <= LABELLED:
        trace["texttemplate"] = "%{z:.2f}"
    hover = {"hovertemplate": "%{y}, %{x}: %{z:.4g}<extra></extra>", "hoverongaps": False}
    return {**trace, **hover, "autocolorscale": True, "colorbar": {"thickness": 12}, **more}


def matrix_layout(rows: int, **more: Any) -> dict[str, Any]:
    """A layout in which each row of a heat map has the same height."""
    reversed_axis = {"autorange": "reversed", "automargin": True, "type": "category", "showgrid": False}
    across = {"automargin": True, "type": "category", "tickangle": -35, "showgrid": False}
    height = 150 + (30 if rows <= 2 * LABELLED else 16) * rows
    return {"xaxis": across, "yaxis": reversed_axis, "height": height, **more}


def thinned(count: int, numbers: int = 1, most: int = STEPS) -> list[int]:
    """At most `most` of `count` positions, evenly spread, including the last; fewer if each has many numbers.

    >>> thinned(5, most=3), thinned(5, numbers=NUMBERS)
    ([0, 2, 4], [4])
    """
    most = max(1, min(most, NUMBERS // max(numbers, 1)))
    if count <= most:
        return list(range(count))
    return [count - 1] if most == 1 else [round(i * (count - 1) / (most - 1)) for i in range(most)]
