"""A figure, and what all figures share: colours, lines, axes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart, without yellow, which is invisible on white.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000")
DASHES = ("solid", "dash", "dot", "dashdot")
SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star")
DIVERGING = [[0.0, "#2166AC"], [0.5, "#F7F7F7"], [1.0, "#B35806"]]
SEQUENTIAL = "Cividis"
STEPS = 60  # most steps of a slider
LABELLED = 12  # a matrix with at most this many rows shows its numbers


@dataclass(frozen=True)
class Slider:
    """States of the first trace, one per label, and the name of the labels; it starts at the last one."""

    name: str
    labels: Sequence[str]
    changes: Sequence[dict[str, Any]]


@dataclass(frozen=True)
class Figure:
    """Traces and layout as plotly.js takes them, a title, and a sentence on how to read it."""

    id: str
    title: str
    note: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    wide: bool = False
    slider: Slider | None = None

    def to_json(self) -> dict[str, Any]:
        """What the browser needs, with numbers rounded to six digits."""
        entries = len(self.data) if len(self.data) > 1 else 0  # a legend may need a line for each
        base = {"margin": {"l": 56, "r": 16, "t": 16, "b": 48}, "height": 310 + 18 * entries, "hovermode": "closest"}
        font = {"family": "system-ui, sans-serif", "size": 12, "color": "#222"}
        legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
        look = {"font": font, "paper_bgcolor": "#fff", "plot_bgcolor": "#fff", "legend": legend}
        changes = list(self.slider.changes) if self.slider else []
        shown: dict[str, Any] = short({"data": self.data, "layout": base | look | self.layout, "changes": changes})
        return shown


def short(value: Any) -> Any:
    """The same data with numbers rounded to six digits, and None for non-finite ones.

    >>> short({"x": [1.23456789, float("nan"), 3]})
    {'x': [1.23457, None, 3]}
    """
    if isinstance(value, dict):
        return {key: short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [short(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.6g}") if math.isfinite(value) else None
    return value


def line(name: str, number: int, x: Sequence[object], y: Sequence[float], **more: Any) -> dict[str, Any]:
    """A curve with its own combination of colour, dash and marker."""
    colour, dash = COLOURS[number % len(COLOURS)], DASHES[number // len(COLOURS) % len(DASHES)]
    marker = {"symbol": SYMBOLS[number % len(SYMBOLS)], "size": 6}
    style = {"color": colour, "dash": dash, "width": 2}
    trace = {"type": "scatter", "mode": "lines+markers", "name": name, "x": list(x), "y": list(y)}
    return {**trace, "line": style, "marker": marker, **more}


def axes(x: str, y: str, **more: Any) -> dict[str, Any]:
    """Titles of both axes."""
    grid = {"gridcolor": "#e5e5e5", "zeroline": False, "automargin": True}
    return {"xaxis": {"title": {"text": x}, **grid}, "yaxis": {"title": {"text": y, "standoff": 8}, **grid}, **more}


def round_axes(rounds: int, y: str, x: str = "round", **more: Any) -> dict[str, Any]:
    """Axes whose x axis counts rounds in whole numbers."""
    layout = axes(x, y, **more)
    layout["xaxis"] |= {"tick0": 0, "dtick": max(1, math.ceil(rounds / 8)), "range": [0, rounds * 1.03]}
    return layout


def matrix(z: Any, rows: Sequence[str], columns: Sequence[object], **more: Any) -> dict[str, Any]:
    """A heat map with its first row on top."""
    trace = {"type": "heatmap", "z": z, "x": list(columns), "y": list(rows), "xgap": 1, "ygap": 1}
    if max(len(rows), len(columns)) <= LABELLED:
        trace["texttemplate"] = "%{z:.2f}"
    return {**trace, "colorscale": SEQUENTIAL, "colorbar": {"thickness": 12}, **more}


def matrix_layout(rows: int, **more: Any) -> dict[str, Any]:
    """A layout in which each row of a heat map has the same height."""
    reversed_axis = {"autorange": "reversed", "automargin": True, "type": "category"}
    across = {"automargin": True, "type": "category", "tickangle": -35}
    return {"xaxis": across, "yaxis": reversed_axis, "height": 150 + 30 * rows, **more}


def thinned(count: int, most: int = STEPS) -> list[int]:
    """At most `most` of `count` positions, evenly spread, including the first and the last.

    >>> thinned(5, most=3)
    [0, 2, 4]
    """
    if count <= most:
        return list(range(count))
    return [round(i * (count - 1) / (most - 1)) for i in range(most)]
