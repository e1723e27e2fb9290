"""How updates agree or conflict, and maps of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fedhca2.aggregation import means
from fedhca2.reports.figures import (
    GREY,
    SYMBOLS,
    Figure,
    Slider,
    Trace,
    axes,
    matrix,
    matrix_layout,
    thinned,
)
from fedhca2.reports.figures.groups import (
    MOST_ROWS,
    ClientGroups,
    by_members,
    group_clients,
    numbers,
    part_of,
    pooled,
    spread,
)
from fedhca2.run_folder.reader import Array, RunFiles

WORDS = {"rows": "updates", "differences": "models, minus their mean"}
SMALLEST = 0.005  # a cosine that is not written as 0
LEAST_REACH = 0.05  # of the colours: smaller cosines should look small
PERPLEXITY = 30.0  # of t-SNE: the number of neighbours that count; a third of the points if there are few
FEWEST = 5  # points of a map: two components show all there is of three, and nearly all of four
FEWEST_OF_TSNE, MOST_OF_TSNE = 20, 300  # fewer have no neighbourhoods, more take longer than a few seconds
NAMED = 10  # most points with their names, which would cover each other
CONFLICT_OF_A_KIND = (
    " Clients with the same data and tasks can conflict here and still help each other: a cosine compares what each "
    "learned from its own images in one round, and a mean cancels where they differ and keeps what they have in common."
)
WITHOUT_TSNE = " pip install 'fedhca2[tsne]' draws t-SNE beside it."


def conflict_figures(run: RunFiles) -> list[Figure]:
    """Draw cosines by round, and maps that place similar members close together, for encoders and decoders."""
    figures, cast = [], group_clients(run)
    for part in ("encoder", "decoder"):
        events_of_part = [
            e
            for e in run.of("aggregation")
            if e["part"] == part and e["products"] is not None and len(e["members"]) > 1
        ]
        groups = by_members(events_of_part, cast)
        for group, (members, events) in enumerate(groups):
            what, mark = WORDS.get(events[0]["measure"], "rows"), f"{part}-{group}" if group else part
            what += f", group {group + 1} of {len(groups)}" if len(groups) > 1 else ""
            what += part_of(events)
            shown = [events[i] for i in thinned(len(events), len(members) ** 2)]
            states = [
                spread(cosines(numbers(event["products"]), event["measure"]), event["members"], members)
                for event in shown
            ]
            rounds = [str(event["round"] + 1) for event in shown]
            figure = cosine_figure(states, rounds, cast.rows(members), mark, f"Cosines of {part} {what}")
            kinds = [f"{run.kinds.get(client, client)}/{task}" for client, task in map(cast.split, members)]
            figures.append(replace(figure, note=figure.note + CONFLICT_OF_A_KIND * conflicts_within(states[-1], kinds)))
            if len(members) < FEWEST:
                continue
            points = Points.of(run, cast, members, rounds)
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


def conflicts_within(cosine: Array, kinds: Sequence[str]) -> bool:
    """Whether two members of a kind conflict.

    >>> conflicts_within(np.array([[1.0, -0.2], [-0.2, 1.0]]), ["home", "home"])
    True
    """
    alike = np.array(kinds)[:, None] == np.array(kinds)
    return bool((cosine[alike] <= -SMALLEST).any())


def cosine_figure(
    states: list[Array], rounds: list[str], rows: Mapping[str, list[int]], mark: str, title: str
) -> Figure:
    """Draw cosines by round without the diagonal, in colours that span the largest of them."""
    held = [pooled(state, rows) for state in states]
    reach = max(LEAST_REACH, *(float(np.nanmax(np.abs(state), initial=0.0)) for state in held))
    names, last = list(rows), held[-1]
    trace = matrix(last.tolist(), names, names, zmin=-reach, zmax=reach)
    steps = Slider("round", rounds, len(rounds) - 1)
    note = "Above 0 updates point in the same direction, below 0 they conflict. "
    if any(len(places) > 1 for places in rows.values()):
        note += "Means over all pairs of different clients"
    else:
        note += "Every update agrees with itself, so the diagonal is left out"
    note += f"; the colours reach from {-reach:.2f} to {reach:.2f}. {in_words(last, names)}"
    changes = [{"z": [state.tolist()]} for state in held]
    return Figure(f"cosine-{mark}", title, note.strip(), [trace], matrix_layout(len(names)), True, [steps], changes)


def in_words(cosine: Array, names: list[str]) -> str:
    """Name the pairs that agree and conflict most.

    >>> in_words(np.array([[np.nan, 0.2, -0.1], [0.2, np.nan, 0.0], [-0.1, 0.0, np.nan]]), ["a", "b", "c"])
    'In the last round a and b agree most (+0.20), a and c least (-0.10).'
    """
    above = np.where(np.triu(np.ones_like(cosine), k=1) > 0, cosine, np.nan)
    if np.isnan(above).all():
        return ""
    if np.isfinite(above).sum() == 1:
        return f"In the last round their cosine is {_signed(np.nanmax(above))}."
    (i, j), (k, m) = (np.unravel_index(find(above), above.shape) for find in (np.nanargmax, np.nanargmin))
    most = f"{names[i]} and {names[j]} agree most ({_signed(above[i, j])})"
    return f"In the last round {most}, {names[k]} and {names[m]} least ({_signed(above[k, m])})."


def _signed(value: float) -> str:
    """A cosine with its sign, which zero does not have."""
    return f"{value:+.2f}" if abs(value) >= SMALLEST else "0.00"


@dataclass(frozen=True)
class Points:
    """The points of a map: labels and colours as in other figures, a symbol for a data set or task, and the rounds."""

    names: list[str]
    labels: list[str]
    marks: list[str]  # what the symbols tell apart
    colours: Mapping[str, str]
    rounds: list[str]

    @classmethod
    def of(cls, run: RunFiles, cast: ClientGroups, members: list[str], rounds: list[str]) -> "Points":
        """The points of members, 'client' or 'client/task'."""
        labels = cast.labels
        parts = [cast.split(member) for member in members]
        marks = [task or run.dataset(client) for client, task in parts]
        return cls(members, [labels.get(client, client) for client, _ in parts], marks, cast.colours, rounds)


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
        positions, share = principal_map(state, maps[-1] if maps else None)
        maps.append(positions)
    reach = max(1e-6, *(float(np.nanmax(np.abs(positions))) for positions in maps)) * 1.15
    layout = axes("first component", "second component")
    layout["xaxis"]["range"] = layout["yaxis"]["range"] = [-reach, reach]
    note = f"Principal components of the vectors at equal length, {share:.0%} of the variance in the last round."
    enough = FEWEST_OF_TSNE <= int((~np.isnan(states[-1].diagonal())).sum()) <= MOST_OF_TSNE
    embedded = tsne_map(states[-1]) if enough else None
    if enough and embedded is None:
        note += WITHOUT_TSNE
    figures = [_map(f"map-{mark}", f"{title}: principal components", note, maps, points, layout)]
    if embedded is not None:
        note = f"t-SNE of the vectors at equal length, round {points.rounds[-1]}. Close points are similar; "
        note += "larger distances mean little."
        figures.append(_map(f"tsne-{mark}", f"{title}: t-SNE", note, [embedded], points, axes("t-SNE 1", "t-SNE 2")))
    return figures


def _map(id: str, title: str, note: str, maps: list[Array], points: Points, layout: dict[str, Any]) -> Figure:
    """Draw the last map, with a slider over all of them; one trace per label, and a legend of the symbols."""
    marks = list(dict.fromkeys(points.marks))
    symbols = {mark: SYMBOLS[i % len(SYMBOLS)] for i, mark in enumerate(marks)}
    members = {label: [i for i, one in enumerate(points.labels) if one == label] for label in points.labels}
    traces: list[Trace] = []
    for label, held in members.items():
        marker = {
            "size": 12 if len(points.names) <= MOST_ROWS else 6,
            "color": points.colours.get(label, GREY),
            "symbol": [symbols[points.marks[i]] for i in held],
        }
        mode = {"mode": "markers+text" if len(points.names) <= NAMED else "markers", "textposition": "top center"}
        trace: Trace = {"type": "scatter", **mode, "name": label, "meta": label, "marker": marker}
        trace |= {"x": maps[-1][held, 0].tolist(), "y": maps[-1][held, 1].tolist(), "cliponaxis": False}
        told = {"text": [points.names[i] for i in held], "hovertemplate": "%{text}<extra></extra>"}
        traces.append({**trace, **told, "showlegend": False})
    changes = [
        {axis: [positions[held, i].tolist() for held in members.values()] for i, axis in enumerate("xy")}
        for positions in maps
    ]
    empty = {"type": "scatter", "mode": "markers", "x": [None], "y": [None], "showlegend": True}
    legend = [{**empty, "name": mark, "marker": {"color": GREY, "size": 10, "symbol": symbols[mark]}} for mark in marks]
    more = {"height": 420, "showlegend": True} if len(marks) > 1 else {"height": 400}
    sliders = [Slider("round", points.rounds, len(points.rounds) - 1)] if len(maps) > 1 else []
    traces += legend if len(marks) > 1 else []
    return Figure(id, title, note, traces, {**layout, **more}, sliders=sliders, changes=changes if sliders else ())
