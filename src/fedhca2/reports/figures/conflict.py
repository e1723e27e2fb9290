"""How similar updates are, and maps of them."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch

from fedhca2.aggregation import means
from fedhca2.reports.figures import GREY, Figure, Slider, Trace, axes, heat_map, thin
from fedhca2.reports.figures.groups import MAX_ROWS, ClientGroups, by_members, expand, group_clients, pool
from fedhca2.run_folder.reader import Array, RunFiles

SYMBOLS = ("circle", "square", "diamond", "cross", "triangle-up", "x", "star", "pentagon", "hexagram", "bowtie")
SMALLEST = 0.005  # a cosine that is not written as 0


def conflict_figures(run: RunFiles) -> list[Figure]:
    """Draw cosines by round, and maps that place similar members close together, for encoders and decoders."""
    figures, groups = [], group_clients(run)
    known = [e for e in run.of("aggregation") if e["products"] is not None and len(e["members"]) > 1]
    for part in ("encoder", "decoder"):
        found = by_members([event for event in known if event["part"] == part], groups)
        for number, same in enumerate(found):
            members, shown = same.members, [same.events[i] for i in thin(len(same.events), len(same.members) ** 2)]
            words = {"rows": "updates", "differences": "models, minus their mean"}
            what = f"{part} {words.get(same.events[0]['measure'], 'rows')}"
            what += f", group {number + 1} of {len(found)}" * (len(found) > 1) + same.part
            gram = [np.array(event["products"], dtype=float) for event in shown]
            states = [
                expand(cosines(products, event["measure"]), event["members"], members)
                for products, event in zip(gram, shown, strict=True)
            ]
            slider = Slider.of_rounds([event["round"] + 1 for event in shown])
            id = f"{part}{same.mark}"
            figure = cosine_figure(states, slider, groups.rows(members), f"cosine-{id}", f"Similarity of {what}")
            kinds = [f"{run.kinds.get(client, client)}/{task}" for client, task in map(groups.split, members)]
            figures.append(replace(figure, note=figure.note + conflict_note(states[-1], kinds)))
            if len(members) >= 5:  # two components show all there is of three, and nearly all of four
                figures += map_figures(states, Points.of(run, groups, members, slider), id, f"Map of {what}")
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
    if any(len(positions) > 1 for positions in rows.values()):
        note += "Means over pairs of different clients. "
    else:
        note += "Diagonal omitted. "
    note += f"Colour scale ±{reach:.2f}. {in_words(pooled[-1], list(rows))}"
    return heat_map(id, title, note.strip(), pooled, list(rows), sliders=[slider], zmin=-reach, zmax=reach)


def in_words(cosine: Array, names: list[str]) -> str:
    """Name the pairs that agree and conflict most.

    >>> in_words(np.array([[np.nan, 0.2, -0.1], [0.2, np.nan, 0.0], [-0.1, 0.0, np.nan]]), ["a", "b", "c"])
    'In the last round a and b agree most (+0.20), a and c least (-0.10).'
    """

    def signed(value: float) -> str:
        return f"{value:+.2f}" if abs(value) >= SMALLEST else "0.00"

    above = np.where(np.triu(np.ones_like(cosine), k=1) > 0, cosine, np.nan)
    if np.isnan(above).all():
        return ""
    if np.isfinite(above).sum() == 1:
        return f"In the last round their cosine is {signed(np.nanmax(above))}."
    (i, j), (k, m) = (np.unravel_index(find(above), above.shape) for find in (np.nanargmax, np.nanargmin))
    most = f"{names[i]} and {names[j]} agree most ({signed(above[i, j])})"
    return f"In the last round {most}, {names[k]} and {names[m]} least ({signed(above[k, m])})."


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
    known = np.nan_to_num(cosine[np.ix_(here, here)])
    values, vectors = np.linalg.eigh(centre @ known @ centre)
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
    distances = np.sqrt(np.clip(2 - 2 * np.nan_to_num(cosine[np.ix_(here, here)]), 0, None))
    start, _ = principal_map(cosine)
    start = 1e-4 * start[here] / max(float(start[here, 0].std()), 1e-12)
    perplexity = min(30.0, (int(here.sum()) - 1) / 3)  # neighbours that count
    points = np.full((len(cosine), 2), np.nan)
    tsne = TSNE(metric="precomputed", init=start, perplexity=perplexity, random_state=0)
    points[here] = tsne.fit_transform(distances)
    return points


class Points(NamedTuple):
    """The points of a map: a colour for each label, as in other figures, and a symbol for each data set or task."""

    members: list[str]  # 'client' or 'client/task'
    labels: Mapping[str, list[int]]  # with the positions of their members
    symbols: list[str]  # what each member's symbol stands for
    colours: Mapping[str, str]
    slider: Slider

    @classmethod
    def of(cls, run: RunFiles, groups: ClientGroups, members: list[str], slider: Slider) -> "Points":
        """The points of members."""
        parts, label_of, labels = [groups.split(member) for member in members], groups.labels, dict[str, list[int]]()
        for i, (client, _) in enumerate(parts):
            labels.setdefault(label_of.get(client, client), []).append(i)
        return cls(members, labels, [task or run.dataset(client) for client, task in parts], groups.colours, slider)


def map_figures(states: list[Array], points: Points, id: str, title: str) -> list[Figure]:
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
    if embedded is None:
        return [_draw_map(first, maps, points)]
    note = f"t-SNE of the vectors at equal length, round {points.slider.labels[-1]}. Close points are similar; "
    note += "distances between far points are not meaningful."
    second = Figure(f"tsne-{id}", f"{title}: t-SNE", note, [], axes("t-SNE 1", "t-SNE 2"))
    return [_draw_map(first, maps, points), _draw_map(second, [embedded], points)]


def _draw_map(figure: Figure, maps: list[Array], points: Points) -> Figure:
    """Draw the last map, with a slider over all of them; one trace per label, and a legend of the symbols."""
    kinds = list(dict.fromkeys(points.symbols))
    symbols = {kind: SYMBOLS[i % len(SYMBOLS)] for i, kind in enumerate(kinds)}
    changes = [
        {axis: [positions[own, i].tolist() for own in points.labels.values()] for i, axis in enumerate("xy")}
        for positions in maps
    ]
    named = {"mode": "markers+text" if len(points.members) <= 10 else "markers", "textposition": "top center"}
    look = {"type": "scatter", **named, "cliponaxis": False, "showlegend": False}
    traces: list[Trace] = []
    for number, (label, own) in enumerate(points.labels.items()):
        marker: Trace = {"size": 12 if len(points.members) <= MAX_ROWS else 6, "color": points.colours.get(label, GREY)}
        marker |= {"symbol": [symbols[points.symbols[i]] for i in own]}
        told = {"text": [points.members[i] for i in own], "hovertemplate": "%{text}<extra></extra>"}
        at = {axis: changes[-1][axis][number] for axis in "xy"}
        traces.append({**look, "name": label, "meta": label, "marker": marker, **at, **told})
    layout, several = figure.layout | {"height": 400}, len(kinds) > 1
    if several:
        empty = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": True}
        marker = {"color": GREY, "size": 10}
        traces += [{**empty, "name": kind, "marker": {**marker, "symbol": symbols[kind]}} for kind in kinds]
        layout |= {"height": 420, "showlegend": True}
    if len(maps) > 1:
        figure = replace(figure, sliders=[points.slider], changes=changes)
    return replace(figure, data=traces, layout=layout)
