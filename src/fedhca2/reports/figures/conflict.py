"""How similar updates are, and maps of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedhca2.aggregation import means
from fedhca2.reports.figures import GREY, Figure, Slider, Trace, axes, heat_map
from fedhca2.reports.figures.groups import MAX_ROWS, by_members, group_clients, pool
from fedhca2.run_folder.reader import Array, RunFiles

SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "pentagon", "hexagram", "bowtie")
SMALLEST = 0.005  # a cosine that is not written as 0


def conflict_figures(run: RunFiles) -> list[Figure]:
    """Draw cosines by round, and maps that place similar members close together, for encoders and decoders."""
    figures, groups = [], group_clients(run)
    labels = groups.labels
    comparable = [e for e in run.of("aggregation") if e["products"] is not None and len(e["members"]) > 1]
    words = {"rows": "updates", "differences": "models, minus their mean"}
    for part in ("encoder", "decoder"):
        layouts = by_members([event for event in comparable if event["part"] == part], groups)
        for number, layout in enumerate(layouts):
            what = f"{part} {words.get(layout.events[0]['measure'], 'rows')}"
            what += f", group {number + 1} of {len(layouts)}" * (len(layouts) > 1) + layout.part
            id, shown = f"{part}{layout.mark}", layout.thin_out(len(layout.members) ** 2)
            states = shown.matrices(lambda event: cosines(np.array(event["products"], dtype=float), event["measure"]))
            members = {name: groups.split(name) for name in layout.members}
            kinds = [f"{run.kinds.get(client, client)}/{task}" for client, task in members.values()]
            slider = Slider.of_rounds(shown.rounds)
            figure = cosine_figure(states, slider, layout.rows, f"cosine-{id}", f"Similarity of {what}")
            figures.append(replace(figure, note=figure.note + conflict_note(states[-1], kinds)))
            if len(members) >= 5:  # two components show all there is of three, and nearly all of four
                points = [
                    Point(name, labels.get(client, client), task or run.dataset(client))
                    for name, (client, task) in members.items()
                ]
                figures += map_figures(states, points, groups.colours, slider, id, f"Map of {what}")
    return figures


def cosines(products: Array, measure: str) -> Array:
    """Compute cosines from inner products; models are compared by their differences from the mean.

    >>> cosines(np.array([[4.0, -2.0], [-2.0, 1.0]]), "rows").tolist()
    [[1.0, -1.0], [-1.0, 1.0]]
    """
    gram = torch.from_numpy(products)
    return means.cosines(means.centred(gram) if measure == "differences" else gram).numpy()


def conflict_note(cosine: Array, kinds: Sequence[str]) -> str:
    """Explain why two members of a kind conflict; nothing if none do.

    >>> conflict_note(np.array([[1.0, -0.2], [-0.2, 1.0]]), ["home", "home"])[:43]
    ' Clients with the same data and tasks can c'
    """
    alike = np.array(kinds)[:, None] == np.array(kinds)
    if not (cosine[alike] <= -SMALLEST).any():
        return ""
    return (
        " Clients with the same data and tasks can conflict here and still help each other: a cosine compares what "
        "each learned from its own images in one round, and a mean cancels where they differ and keeps what they have "
        "in common."
    )


def cosine_figure(states: list[Array], slider: Slider, rows: Mapping[str, list[int]], id: str, title: str) -> Figure:
    """Draw cosines by round without the diagonal, in colours that span the largest of them."""
    pooled = [pool(state, rows) for state in states]
    reach = max(0.05, *(float(np.nanmax(np.abs(state), initial=0.0)) for state in pooled))  # small ones look small
    note = "Above 0 updates point in the same direction, below 0 they conflict. "
    several = any(len(positions) > 1 for positions in rows.values())
    note += "Means over pairs of different clients. " if several else "Diagonal omitted. "
    note += f"Colour scale ±{reach:.2f}. {describe_pairs(pooled[-1], list(rows))}"
    return heat_map(id, title, note.strip(), pooled, list(rows), sliders=[slider], zmin=-reach, zmax=reach)


def describe_pairs(cosine: Array, names: list[str]) -> str:
    """Name the pairs that agree and conflict most.

    >>> describe_pairs(np.array([[np.nan, 0.2, -0.1], [0.2, np.nan, 0.0], [-0.1, 0.0, np.nan]]), ["a", "b", "c"])
    'In the last round a and b agree most (+0.20), a and c least (-0.10).'
    """

    def format_cosine(value: float) -> str:
        return f"{value:+.2f}" if abs(value) >= SMALLEST else "0.00"

    above = np.where(np.triu(np.ones_like(cosine), k=1) > 0, cosine, np.nan)
    if np.isnan(above).all():
        return ""
    if np.isfinite(above).sum() == 1:
        return f"In the last round their cosine is {format_cosine(np.nanmax(above))}."
    (i, j), (k, m) = (np.unravel_index(find(above), above.shape) for find in (np.nanargmax, np.nanargmin))
    most = f"{names[i]} and {names[j]} agree most ({format_cosine(above[i, j])})"
    return f"In the last round {most}, {names[k]} and {names[m]} least ({format_cosine(above[k, m])})."


def principal_map(cosine: Array, previous: Array | None = None) -> tuple[Array, float]:
    """PCA of vectors with these cosines: [N, 2] with NaN for absent members, and the share of variance shown.

    The sign and order of axes are arbitrary, so the map is aligned with the `previous` one.

    >>> map, share = principal_map(np.array([[1.0, -1.0], [-1.0, 1.0]]))
    >>> np.abs(map).round(6).tolist(), round(share, 6)
    ([[1.0, 0.0], [1.0, 0.0]], 1.0)
    """
    is_present = ~np.isnan(cosine.diagonal())
    count = int(is_present.sum())
    centre = np.eye(count) - 1 / count
    present = np.nan_to_num(cosine[np.ix_(is_present, is_present)])
    values, vectors = np.linalg.eigh(centre @ present @ centre)
    values, vectors = np.clip(values[::-1], 0, None), vectors[:, ::-1]
    points = np.full((len(cosine), 2), np.nan)
    points[is_present] = vectors[:, :2] * np.sqrt(values[:2])
    if previous is not None:
        both = is_present & ~np.isnan(previous[:, 0])
        left, _, right = np.linalg.svd(points[both].T @ previous[both])
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
    is_present = ~np.isnan(cosine.diagonal())
    distances = np.sqrt(np.clip(2 - 2 * np.nan_to_num(cosine[np.ix_(is_present, is_present)]), 0, None))
    start, _ = principal_map(cosine)
    start = 1e-4 * start[is_present] / max(float(start[is_present, 0].std()), 1e-12)
    perplexity = min(30.0, (int(is_present.sum()) - 1) / 3)  # neighbours that count
    points = np.full((len(cosine), 2), np.nan)
    tsne = TSNE(metric="precomputed", init=start, perplexity=perplexity, random_state=0)
    points[is_present] = tsne.fit_transform(distances)
    return points


class Point(NamedTuple):
    """A member on a map: its label, whose colour it has, and what its symbol stands for, a data set or a task."""

    name: str
    label: str
    symbol: str


def map_figures(
    states: list[Array], points: list[Point], colours: Mapping[str, str], slider: Slider, id: str, title: str
) -> list[Figure]:
    """Draw principal components by round, and t-SNE of the last round if there are enough points.

    :param states: cosines of the members, for each position of the slider.
    """
    maps, share = list[Array](), 0.0
    for state in states:
        positions, share = principal_map(state, maps[-1] if maps else None)
        maps.append(positions)
    reach = max(1e-6, *(float(np.nanmax(np.abs(positions))) for positions in maps)) * 1.15
    pca = axes("first component", "second component")
    pca["xaxis"]["range"] = pca["yaxis"]["range"] = [-reach, reach]
    note = f"Principal components of the vectors at equal length, {share:.0%} of the variance in the last round."
    # fewer points have no neighbourhoods, more take longer than a few seconds
    enough = 20 <= int((~np.isnan(states[-1].diagonal())).sum()) <= 300
    embedded = tsne_map(states[-1]) if enough else None
    if enough and embedded is None:
        note += " For a t-SNE map, install fedhca2[tsne]."
    first = Figure(f"map-{id}", f"{title}: principal components", note, [], pca)
    figures = [_map(first, maps, points, colours, slider)]
    if embedded is not None:
        note = f"t-SNE of the vectors at equal length, round {slider.labels[-1]}. Close points are similar; "
        note += "distances between far points are not meaningful."
        second = Figure(f"tsne-{id}", f"{title}: t-SNE", note, [], axes("t-SNE 1", "t-SNE 2"))
        figures.append(_map(second, [embedded], points, colours, slider))
    return figures


def _map(figure: Figure, maps: list[Array], points: list[Point], colours: Mapping[str, str], slider: Slider) -> Figure:
    """Draw the last map, with a slider over all of them; one trace per label, and a legend of the symbols."""
    kinds = list(dict.fromkeys(point.symbol for point in points))
    symbols = {kind: SYMBOLS[i % len(SYMBOLS)] for i, kind in enumerate(kinds)}
    labels = list(dict.fromkeys(point.label for point in points))
    rows = [[i for i, point in enumerate(points) if point.label == label] for label in labels]
    changes = [{axis: [map[own, i].tolist() for own in rows] for i, axis in enumerate("xy")} for map in maps]
    look: Trace = {"type": "scatter", "mode": "markers+text" if len(points) <= 10 else "markers", "showlegend": False}
    look |= {"textposition": "top center", "cliponaxis": False, "hovertemplate": "%{text}<extra></extra>"}
    traces: list[Trace] = []
    for label, own, x, y in zip(labels, rows, changes[-1]["x"], changes[-1]["y"], strict=True):
        marker: Trace = {"size": 12 if len(points) <= MAX_ROWS else 6, "color": colours.get(label, GREY)}
        marker |= {"symbol": [symbols[points[i].symbol] for i in own]}
        text = [points[i].name for i in own]
        traces.append({**look, "name": label, "meta": label, "marker": marker, "x": x, "y": y, "text": text})
    several = len(kinds) > 1
    for kind in kinds * several:  # points of the legend alone
        marker = {"color": GREY, "size": 10, "symbol": symbols[kind]}
        empty = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": True}
        traces.append({**empty, "name": kind, "marker": marker})
    layout = figure.layout | ({"height": 420, "showlegend": True} if several else {"height": 400})
    sliders = [slider] if len(maps) > 1 else []
    return replace(figure, data=traces, layout=layout, sliders=sliders, changes=changes * len(sliders))
