"""How updates agree or conflict, and maps of them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fedhca2.aggregation import means
from fedhca2.reports.figures.figure import (
    COLOURS,
    DIVERGING,
    LABELLED,
    SYMBOLS,
    Figure,
    Slider,
    axes,
    matrix,
    matrix_layout,
    thinned,
)
from fedhca2.reports.figures.mixing import by_members, spread
from fedhca2.run_folder.reader import Array, RunFiles

WORDS = {"rows": "updates", "differences": "models, minus their mean"}


def conflict_figures(run: RunFiles) -> list[Figure]:
    """Draw cosines by round, and maps that place similar members close together, for encoders and decoders."""
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
            points = Points(names, [kind_of(run, name) for name in members], rounds)
            figures += map_figures(states, points, mark, f"Map of {part} {what}")
    return figures


def cosines(products: Array, measure: str) -> Array:
    """Compute cosines from inner products; models are compared by their differences from the mean.

    >>> cosines(np.array([[4.0, -2.0], [-2.0, 1.0]]), "rows").tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if measure == "differences":
        centre = np.eye(len(products)) - 1 / len(products)
        products = centre @ products @ centre
    return means.cosines(torch.from_numpy(products)).numpy()


def _cosine_figure(states: list[Array], rounds: list[str], names: list[str], mark: str, title: str) -> Figure:
    trace = matrix(states[-1].tolist(), names, names, zmin=-1, zmax=1, colorscale=DIVERGING)
    steps = Slider("round", rounds, [{"z": [state.tolist()]} for state in states])
    note = "+1: they point in the same direction; 0: they are unrelated; below 0: they conflict."
    return Figure(f"cosine-{mark}", title, note, [trace], matrix_layout(len(names)), wide=True, slider=steps)


PERPLEXITY = 30.0  # of t-SNE: the number of neighbours that count; a third of the points if there are few
FEWEST = 7  # points that t-SNE needs
WITHOUT_TSNE = " pip install 'fedhca2[tsne]' draws t-SNE beside it."


class Kind(NamedTuple):
    """The kind of a point: its colour shows the task, its symbol the data set."""

    data: str
    tasks: str


@dataclass(frozen=True)
class Points:
    """Names and kinds of the members on a map, and the rounds it shows."""

    names: list[str]
    kinds: list[Kind]
    rounds: list[str]


def kind_of(run: RunFiles, member: str) -> Kind:
    """The data set of a member, 'client' or 'client/task', and its task or tasks."""
    client, _, task = member.partition("/")
    for event in run.of("profile"):
        if event["client"] == client:
            return Kind(event["dataset"], task or ", ".join(event["tasks"]))
    return Kind("", task or client)


def principal_map(cosine: Array, near: Array | None = None) -> tuple[Array, float]:
    """PCA of vectors with these cosines: [N, 2] with NaN for absent members, and the share of variance shown.

    The sign and order of axes are arbitrary, so the map is aligned with `near`, an earlier one.

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


def tsne_map(cosine: Array) -> Array | None:
    """t-SNE of vectors with these cosines, [N, 2], from their distances at equal length; None without scikit-learn.

    It starts from the principal components, so the same vectors always give the same map.
    """
    try:
        from sklearn.manifold import TSNE
    except ImportError:
        return None
    here = ~np.isnan(cosine.diagonal())
    distances = np.sqrt(np.clip(2 - 2 * cosine[np.ix_(here, here)], 0, None))
    start, _ = principal_map(cosine)
    start = 1e-4 * start[here] / max(float(start[here, 0].std()), 1e-12)
    perplexity = min(PERPLEXITY, (int(here.sum()) - 1) / 3)
    points = np.full((len(cosine), 2), np.nan)
    points[here] = TSNE(metric="precomputed", init=start, perplexity=perplexity, random_state=0).fit_transform(
        distances
    )
    return points


def map_figures(states: list[Array], points: Points, mark: str, title: str) -> list[Figure]:
    """Draw principal components by round, and t-SNE of the last round if there are enough points."""
    maps: list[Array] = []
    share = 0.0
    for state in states:
        found, share = principal_map(state, maps[-1] if maps else None)
        maps.append(found)
    changes = [{"x": [found[:, 0].tolist()], "y": [found[:, 1].tolist()]} for found in maps]
    reach = max(1e-6, *(float(np.nanmax(np.abs(found))) for found in maps)) * 1.3
    layout = axes("first component", "second component")
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = [-reach, reach]
    note = f"Principal components of the vectors at equal length, {share:.0%} of the variance in the last round."
    enough = int((~np.isnan(states[-1].diagonal())).sum()) >= FEWEST
    embedded = tsne_map(states[-1]) if enough else None
    if enough and embedded is None:
        note += WITHOUT_TSNE
    steps = Slider("round", points.rounds, changes)
    figures = [_figure(f"map-{mark}", f"{title}: principal components", note, maps[-1], points, layout, steps)]
    if embedded is not None:
        note = f"t-SNE of the vectors at equal length, round {points.rounds[-1]}. Close points are similar; "
        note += "larger distances mean little."
        layout = axes("t-SNE 1", "t-SNE 2")
        figures.append(_figure(f"tsne-{mark}", f"{title}: t-SNE", note, embedded, points, layout))
    return figures


def _figure(
    id: str, title: str, note: str, found: Array, points: Points, layout: dict[str, Any], steps: Slider | None = None
) -> Figure:
    data, tasks = (list(dict.fromkeys(values)) for values in zip(*points.kinds, strict=True))

    def marker(kinds: list[Kind]) -> dict[str, Any]:
        return {
            "size": 12,
            "color": [COLOURS[tasks.index(kind.tasks) % len(COLOURS)] for kind in kinds],
            "symbol": [SYMBOLS[data.index(kind.data) % len(SYMBOLS)] for kind in kinds],
        }

    labelled = "+text" if len(points.names) <= LABELLED else ""
    trace = {"type": "scatter", "mode": f"markers{labelled}", "x": found[:, 0].tolist(), "y": found[:, 1].tolist()}
    trace |= {"text": points.names, "textposition": "top center", "marker": marker(points.kinds), "cliponaxis": False}
    trace |= {"hovertemplate": "%{text}<extra></extra>", "showlegend": False}
    kinds = list(dict.fromkeys(points.kinds))
    empty = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": True}
    legend = [{**empty, "name": " ".join(kind), "marker": marker([kind])} for kind in kinds]
    return Figure(
        id, title, note, [trace, *legend], {**layout, "height": 440 + 6 * len(kinds)}, wide=True, slider=steps
    )
