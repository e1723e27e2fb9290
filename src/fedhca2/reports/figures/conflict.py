"""How updates agree or conflict, and where they lie to each other."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch

from fedhca2.aggregation import grouped
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

WORDS = {"rows": "updates", "differences": "models, less their mean"}


def conflict_figures(run: RunFiles) -> list[Figure]:
    """For encoders and decoders: cosines by round, and maps on which alike ones are near each other."""
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
    """Cosines from inner products; of models only their differences to the mean tell them apart.

    >>> cosines(np.array([[4.0, -2.0], [-2.0, 1.0]]), "rows").tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    if measure == "differences":
        centre = np.eye(len(products)) - 1 / len(products)
        products = centre @ products @ centre
    return grouped.cosines(torch.from_numpy(products)).numpy()


def _cosine_figure(states: list[Array], rounds: list[str], names: list[str], mark: str, title: str) -> Figure:
    trace = matrix(states[-1].tolist(), names, names, zmin=-1, zmax=1, colorscale=DIVERGING)
    steps = Slider("round", rounds, [{"z": [state.tolist()]} for state in states])
    note = "+1: they pull the same way; 0: they have nothing to do with each other; below 0: they conflict."
    return Figure(f"cosine-{mark}", title, note, [trace], matrix_layout(len(names)), wide=True, slider=steps)


PERPLEXITY = 30.0  # of t-SNE: how many neighbours count, for each of many points; a third of them where they are few
FEWEST = 7  # points that t-SNE is drawn of
WITHOUT_TSNE = " pip install 'fedhca2[tsne]' draws t-SNE beside it."


class Kind(NamedTuple):
    """What a point is of: its colour says the task, its symbol the data set."""

    data: str
    tasks: str


@dataclass(frozen=True)
class Points:
    """Names and kinds of the members of a map, and the rounds that it is drawn for."""

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


def tsne_map(cosine: Array) -> Array | None:
    """t-SNE of vectors with these cosines, [N, 2], from their distances at equal length; None without scikit-learn.

    It starts from the principal components, so that the same vectors always have the same map.
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
    """Principal components by round, and of the last round t-SNE where there are enough points, from their cosines."""
    maps: list[Array] = []
    share = 0.0
    for state in states:
        found, share = principal_map(state, maps[-1] if maps else None)
        maps.append(found)
    changes = [{"x": [found[:, 0].tolist()], "y": [found[:, 1].tolist()]} for found in maps]
    reach = max(1e-6, *(float(np.nanmax(np.abs(found))) for found in maps)) * 1.3
    layout = axes("first component", "second component")
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = [-reach, reach]
    note = f"Principal components of the vectors at equal length, {share:.0%} of their variance in the last round."
    enough = int((~np.isnan(states[-1].diagonal())).sum()) >= FEWEST
    embedded = tsne_map(states[-1]) if enough else None
    if enough and embedded is None:
        note += WITHOUT_TSNE
    steps = Slider("round", points.rounds, changes)
    figures = [_figure(f"map-{mark}", f"{title}: principal components", note, maps[-1], points, layout, steps)]
    if embedded is not None:
        note = f"t-SNE of the vectors at equal length, round {points.rounds[-1]}. Close points are alike; "
        note += "how far apart others are says little."
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
