"""How updates agree or conflict, and where they lie to each other."""

import numpy as np

from fedhca2.reports.figures.figure import (
    COLOURS,
    DIVERGING,
    SYMBOLS,
    Figure,
    Slider,
    axes,
    matrix,
    matrix_layout,
    thinned,
)
from fedhca2.reports.figures.members import by_members, spread
from fedhca2.reports.run_files import Array, RunFiles

WORDS = {"rows": "updates", "differences": "models, less their mean"}


def conflict_figures(run: RunFiles) -> list[Figure]:
    """For encoders and decoders: cosines by round, and a map on which alike ones are near each other."""
    figures = []
    for part in ("encoder", "decoder"):
        found = [e for e in run.of("aggregation") if e["part"] == part and e["products"] and len(e["members"]) > 1]
        for group, (members, events) in enumerate(by_members(found)):
            what, mark = WORDS[events[0]["measure"]], f"{part}-{group}" if group else part
            shown = [events[i] for i in thinned(len(events))]
            states = [
                spread(cosines(np.array(event["products"]), event["measure"]), event["members"], members)
                for event in shown
            ]
            rounds, names = [str(event["round"] + 1) for event in shown], [run.short_name(name) for name in members]
            figures.append(_cosine_figure(states, rounds, names, mark, f"Cosines of {part} {what}"))
            kinds = [name.rpartition("/")[2] for name in members]
            figures.append(_map_figure(states, rounds, names, kinds, mark, f"Map of {part} {what}"))
    return figures


def cosines(products: Array, measure: str) -> Array:
    """Cosines from inner products; of models only their differences to the mean tell them apart.

    >>> cosines(np.array([[4.0, -2.0], [-2.0, 1.0]]), "rows").tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if measure == "differences":
        centre = np.eye(len(products)) - 1 / len(products)
        products = centre @ products @ centre
    lengths = np.sqrt(np.clip(products.diagonal(), 0, None))
    return np.clip(products / np.maximum(np.outer(lengths, lengths), np.finfo(float).tiny), -1, 1)


def principal_map(cosine: Array, near: Array | None = None) -> tuple[Array, float]:
    """PCA of vectors with these cosines: [N, 2], and the share of variance shown; NaN for members who were away.

    Axes have no sign or order of their own: `near` is an earlier map that this one is turned towards.

    >>> map, share = principal_map(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    >>> np.abs(map).round(6).tolist(), round(share, 6)
    ([[1.0, 0.0], [1.0, 0.0]], 1.0)
    """
    here = ~np.isnan(cosine.diagonal())
    count = int(here.sum())
    centre = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(centre @ cosine[np.ix_(here, here)] @ centre)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    points = np.full((len(cosine), 2), np.nan)
    points[here] = vectors[:, :2] * np.sqrt(values[:2])
    if near is not None:
        both = here & ~np.isnan(near[:, 0])
        left, _, right = np.linalg.svd(points[both].T @ near[both])
        points = points @ left @ right
    return points, float(values[:2].sum() / max(values.sum(), 1e-12))


def _cosine_figure(states: list[Array], rounds: list[str], names: list[str], mark: str, title: str) -> Figure:
    trace = matrix(states[-1].tolist(), names, names, zmin=-1, zmax=1, colorscale=DIVERGING)
    steps = Slider("round", rounds, [{"z": [state.tolist()]} for state in states])
    note = "+1: they pull the same way; 0: they have nothing to do with each other; below 0: they conflict."
    return Figure(f"cosine-{mark}", title, note, [trace], matrix_layout(len(names)), wide=True, slider=steps)


def _map_figure(
    states: list[Array], rounds: list[str], names: list[str], kinds: list[str], mark: str, title: str
) -> Figure:
    maps: list[Array] = []
    share = 0.0
    for state in states:
        points, share = principal_map(state, maps[-1] if maps else None)
        maps.append(points)
    changes = [{"x": [points[:, 0].tolist()], "y": [points[:, 1].tolist()]} for points in maps]
    numbers = [list(dict.fromkeys(kinds)).index(kind) for kind in kinds]
    marker = {
        "size": 14,
        "color": [COLOURS[n % len(COLOURS)] for n in numbers],
        "symbol": [SYMBOLS[n % len(SYMBOLS)] for n in numbers],
    }
    trace = {"type": "scatter", "mode": "markers+text", "x": changes[-1]["x"][0], "y": changes[-1]["y"][0]}
    trace |= {"text": names, "textposition": "top center", "marker": marker, "cliponaxis": False}
    reach = max(1e-6, *(float(np.nanmax(np.abs(points))) for points in maps)) * 1.3
    layout = axes("first component", "second component", height=440)
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = [-reach, reach]
    note = f"Principal components of the vectors at equal length, {share:.0%} of their variance in the last round."
    return Figure(f"map-{mark}", title, note, [trace], layout, wide=True, slider=Slider("round", rounds, changes))
