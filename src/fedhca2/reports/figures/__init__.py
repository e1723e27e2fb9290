"""Figures of a run, as plain data that plotly.js draws, and what they share: colours, lines, axes, heat maps."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from html import escape
from typing import Any

import numpy as np

# Each has a contrast of at least 3 on the light page and on the dark one; the first ones can be told apart by everyone.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#B0509A", "#A67C00", "#8F6BD1", "#0E93A8", "#E0405E", "#5B8C2A", "#96705A")
GREY = "#7F7F7F"  # of training alone, and of what belongs to no client
MAX_LABELLED = 12  # rows of a matrix that shows its numbers
MAX_NUMBERS = 150_000  # in all steps of a slider
Trace = dict[str, Any]  # as plotly.js takes it


@dataclass(frozen=True)
class Slider:
    """The labels of a slider, and the position at which it starts."""

    name: str
    labels: Sequence[str]
    start: int

    @classmethod
    def of_rounds(cls, rounds: Sequence[object]) -> "Slider":
        """A slider over rounds, which starts at the last one."""
        return cls("round", [str(round) for round in rounds], len(rounds) - 1)


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
        shown: dict[str, Any] = to_plain({"data": self.data, "layout": layout, "changes": list(self.changes)})
        return shown


def to_plain(value: Any, key: str = "") -> Any:
    """The same data with numbers rounded to six digits, None for non-finite ones, and no markup in texts.

    >>> to_plain({"x": [1.23456789, float("nan"), 3], "name": "<b>road</b>"})
    {'x': [1.23457, None, 3], 'name': '&lt;b&gt;road&lt;/b&gt;'}
    """
    if isinstance(value, dict):
        return {key: to_plain(item, key) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_plain(item, key) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    if isinstance(value, str) and not key.endswith("template"):  # texts of our own, with plotly's markup
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


def round_axes(rounds: int, y: str, fit: Iterable[Trace] | None = None) -> dict[str, Any]:
    """Axes whose x axis counts rounds in whole numbers, and whose y axis starts at 0, or fits these traces."""
    layout = axes("round", y)
    edge = 0.03 * rounds
    layout["xaxis"] |= {"tick0": 0, "dtick": max(1, math.ceil(rounds / 8)), "range": [-edge, rounds + edge]}
    within = fit_range(value for trace in fit for value in trace["y"]) if fit is not None else None
    layout["yaxis"] |= {"range": within} if within else {"rangemode": "tozero"}
    return layout


def fit_range(values: Iterable[float | None]) -> list[float] | None:
    """A range around values, at least a tenth of their size, so that noise looks small; None without any value.

    >>> fit_range([2.0, 4.0]), fit_range([10.0, 10.0])
    ([1.88, 4.12], [9.44, 10.56])
    """
    finite = [value for value in values if value is not None and math.isfinite(value)]
    if not finite:
        return None
    low, high = min(finite), max(finite)
    span = max(high - low, 0.1 * max(abs(low), abs(high)), 1e-9)
    middle = (low + high) / 2
    return [round(middle - 0.56 * span, 12), round(middle + 0.56 * span, 12)]


def gain_bars(label: str, colour: str, names: Sequence[str], gains: Sequence[float], **more: Any) -> Trace:
    """Horizontal bars in one colour."""
    trace = {"type": "bar", "orientation": "h", "name": label, "y": list(names), "x": list(gains)}
    hover = "%{y}: %{x:+.2f}%<extra>%{fullData.name}</extra>"
    return {**trace, "marker": {"color": colour}, "cliponaxis": False, "hovertemplate": hover, **more}


def gain_axes(x: str, gains: Iterable[float], height: int, **more: Any) -> dict[str, Any]:
    """Axes of horizontal bars that start at 0, with room for a number at the end of each."""
    finite = [0.0, *(gain for gain in gains if math.isfinite(gain))]
    low, high = min(finite), max(finite)
    room = 0.25 * (high - low or 1.0)
    layout = axes(x, "", height=height, **more)
    layout["xaxis"] |= {"zeroline": True, "range": [low - room * (low < 0), high + room * (high > 0 or low == 0)]}
    layout["yaxis"] |= {"autorange": "reversed", "type": "category", "showgrid": False}
    return layout


def heat_map(
    id: str,
    title: str,
    note: str,
    states: Sequence[Any],
    rows: Sequence[str],
    columns: Sequence[object] = (),
    *,
    sliders: Sequence[Slider] = (),
    layout: dict[str, Any] | None = None,
    **look: Any,
) -> Figure:
    """A heat map with its first row on top, in the theme's colours: those of two directions if it crosses 0.

    :param states: a matrix for each combination of the sliders' positions, the last slider's first.
    :param columns: their names, if these are not those of the rows.
    :param look: further settings of plotly's trace.
    """
    values = [np.asarray(state).tolist() for state in states]
    shown = reduce(lambda at, slider: at * len(slider.labels) + slider.start, sliders, 0)
    columns = list(columns or rows)
    trace = {"type": "heatmap", "z": values[shown], "x": columns, "y": list(rows), "xgap": 1, "ygap": 1}
    if max(len(rows), len(columns)) <= MAX_LABELLED:
        trace["texttemplate"] = "%{z:.2f}"
    hover = {"hovertemplate": "%{y}, %{x}: %{z:.4g}<extra></extra>", "hoverongaps": False}
    trace |= {**hover, "autocolorscale": True, "colorbar": {"thickness": 12}, **look}
    down = {"autorange": "reversed", "automargin": True, "type": "category", "showgrid": False}
    across = {"automargin": True, "type": "category", "tickangle": -35, "showgrid": False}
    height = 150 + (30 if len(rows) <= 2 * MAX_LABELLED else 16) * len(rows)
    whole = {"xaxis": across, "yaxis": down, "height": height, **(layout or {})}
    return Figure(id, title, note, [trace], whole, True, sliders, [{"z": [one]} for one in values] if sliders else ())


def thin(count: int, numbers: int = 1, most: int = 60) -> list[int]:
    """At most `most` of `count` positions, evenly spread, including the last; fewer if each has many numbers.

    >>> thin(5, most=3), thin(5, numbers=MAX_NUMBERS)
    ([0, 2, 4], [4])
    """
    most = max(1, min(most, MAX_NUMBERS // max(numbers, 1)))
    if count <= most:
        return list(range(count))
    return [count - 1] if most == 1 else [round(i * (count - 1) / (most - 1)) for i in range(most)]
