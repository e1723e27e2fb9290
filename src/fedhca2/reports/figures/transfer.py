"""Who helps whom: what clients gained from the server, and what their updates would do for each other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
import torch

from fedhca2.aggregation.means import cosines
from fedhca2.reports.figures import (
    COLOURS,
    GREY,
    LABELLED,
    Figure,
    Slider,
    axes,
    matrix,
    matrix_layout,
    thinned,
)
from fedhca2.reports.figures.groups import by_members, group_clients, spread
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.words import counted, gain_text

BARS = 40  # most clients that have a bar
ARROWS = 60  # most arrows of a graph
POINTS = 4_000  # most pairs among points
HELPS, HARMS, INK = COLOURS[2], COLOURS[1], GREY
SCALE = [[0.0, HARMS], [0.5, "#F7F7F7"], [1.0, HELPS]]
WHOLE = "if its whole update were added to the other's trained encoder"


@dataclass(frozen=True)
class MeasuredPairs:
    """Clients whose encoders have one layout; matrices are [giver, receiver], one for each measured round."""

    members: list[str]
    rounds: list[int]
    transfer: list[Array]  # Z in percent; NaN if it was not measured
    cosine: list[Array]
    magnitude: list[Array]

    @property
    def mean(self) -> Array:
        """The mean transfer over rounds, without the diagonal."""
        known = ~np.isnan(self.transfer)
        total = np.where(known, self.transfer, 0).sum(axis=0)
        return np.where(known.any(axis=0), total / np.maximum(known.sum(axis=0), 1), np.nan)

    def best_giver(self, receiver: str) -> tuple[str, float] | None:
        """Whose update would help a client most, and by how much; None if no update was measured."""
        if receiver not in self.members:
            return None
        column = self.mean[:, self.members.index(receiver)]
        if np.isnan(column).all():
            return None
        giver = int(np.nanargmax(column))
        return self.members[giver], float(column[giver])


def magnitude_similarity(gram: Array) -> Array:
    """2‖Δ_i‖‖Δ_j‖ / (‖Δ_i‖² + ‖Δ_j‖²) from a Gram matrix: 1 for updates of one length, 0 if one is far shorter.

    >>> magnitude_similarity(np.array([[4.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 0.8], [0.8, 1.0]]
    """
    squares = np.clip(gram.diagonal(), np.finfo(float).tiny, None)
    return np.asarray(2 * np.sqrt(np.outer(squares, squares)) / np.add.outer(squares, squares))


def client_gains(run: RunFiles) -> dict[str, dict[int, float]]:
    """By client and round, how much smaller its validation loss was after the server's rows, in percent."""
    gains: dict[str, dict[int, float]] = {}
    for event in run.of("effect"):
        if event["before"] > 0:
            gains.setdefault(event["client"], {})[event["round"]] = 100 * (1 - event["after"] / event["before"])
    return gains


def measured_pairs(run: RunFiles) -> list[MeasuredPairs]:
    """The pairs of every layout. If no transfer was measured, the updates that the server compared anyway."""
    events = run.of("transfer")
    rounds = {event["round"] - 1 for event in run.of("effect")} if not events else set()
    if rounds:
        compared = [event for event in run.of("aggregation") if event["round"] in rounds and len(event["members"]) > 1]
        events = [event for event in compared if (event["part"], event["measure"]) == ("encoder", "rows")]
    return [_pairs(members, group) for members, group in by_members(events, group_clients(run))]


def _pairs(members: list[str], events: Sequence[Event]) -> MeasuredPairs:
    def states(of: Any) -> list[Array]:
        return [spread(np.array(of(event), dtype=float), event["members"], members) for event in events]

    def unknown(event: Event) -> Array:
        return np.full((len(event["members"]),) * 2, np.nan)

    grams = {id(event): np.array(event["products"], dtype=float) for event in events}
    return MeasuredPairs(
        members,
        [event["round"] + 1 for event in events],
        states(lambda event: 100 * np.array(event["transfer"], dtype=float) if "transfer" in event else unknown(event)),
        states(lambda event: cosines(torch.from_numpy(grams[id(event)])).numpy()),
        states(lambda event: magnitude_similarity(grams[id(event)])),
    )


def transfer_sentences(run: RunFiles) -> list[str]:
    """Say who gained and who helps, over all measured rounds; empty if the run did not ask."""
    gains = {client: fmean(by_round.values()) for client, by_round in client_gains(run).items()}
    pairs, sentences = measured_pairs(run), []
    if run.config.get("diagnostics") and not gains and not pairs:
        sentences.append("Who helps whom was not measured: in no measured round did clients share encoders.")
    if gains:
        sentences.append(_immediate_effect(gains, pairs))
    for group in pairs:
        given = {name: _mean_of(row) for name, row in zip(group.members, group.mean, strict=True)}
        given = {name: mean for name, mean in given.items() if not np.isnan(mean)}
        if given:
            most, least = max(given, key=given.__getitem__), min(given, key=given.__getitem__)
            first, last = ("help the others most", "least") if given[most] > 0 else ("harm the others least", "most")
            sentences.append(
                f"Added whole, the update of {most} would {first} ({loss_text(given[most])} on average), "
                f"and that of {least} {last} ({loss_text(given[least])})."
            )
    return sentences


def _immediate_effect(gains: Mapping[str, float], pairs: Sequence[MeasuredPairs]) -> str:
    """Say for whom the server's rows lowered the loss, and how that goes together with Δm if they did not."""
    most, least = max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)
    better = sum(gain > 0 for gain in gains.values())
    told = f"In the measured rounds, taking the server's rows lowered the validation loss of {better} of "
    told += f"{counted(len(gains), 'client')} at once, before further training: it "
    told += f"{'fell most' if gains[most] > 0 else 'rose least'} for {most} ({loss_text(gains[most])})"
    if least != most:
        told += f", and {'rose most' if gains[least] < 0 else 'fell least'} for {least} ({loss_text(gains[least])})"
    giver = next((best for group in pairs if (best := group.best_giver(most)) and best[1] > 0), None)
    told += (
        f". The update of {giver[0]}, added whole, would help {most} most ({loss_text(giver[1])})." if giver else "."
    )
    if better < len(gains):
        told += " A loss that rises at once can still end lower: Δm compares scores at the end of whole runs."
    return told


def loss_text(gain: float) -> str:
    """The relative change of a loss, from how much smaller it became in percent.

    >>> loss_text(2.5), loss_text(-1.0)
    ('loss -2.50 %', 'loss +1.00 %')
    """
    return f"loss {gain_text(-gain)}"


def _mean_of(values: Array) -> float:
    known = values[~np.isnan(values)]
    return float(known.mean()) if known.size else float("nan")


def transfer_figures(run: RunFiles) -> list[Figure]:
    """Draw every client's gain, transfer between pairs as heat map and graph, and how pairs of updates relate."""
    gains = client_gains(run)
    figures = [_gain_bars(gains, " ".join(["Left of 0 a loss rose.", *transfer_sentences(run)]))] if gains else []
    for number, pairs in enumerate(measured_pairs(run)):
        mark = f"-{number}" if number else ""
        if not np.isnan(pairs.mean).all():
            figures += [_heat_map(pairs, mark), _graph(pairs, mark)]
        figures.append(_points(pairs, mark))
    return figures


def _gain_bars(gains: Mapping[str, Mapping[int, float]], told: str) -> Figure:
    """Draw a bar for every client, the mean over rounds; of many clients, those at both ends."""
    means = {client: fmean(by_round.values()) for client, by_round in gains.items()}
    names = sorted(means, key=means.__getitem__)
    if len(names) > BARS:
        names = names[: BARS // 2] + names[-BARS // 2 :]
        told += f" Of {len(means)} clients, the {BARS // 2} with the largest and the smallest fall are drawn."
    by_round = [
        ", ".join(f"round {round}: {gain_text(gain)}" for round, gain in sorted(gains[name].items())[-12:])
        for name in names
    ]
    trace = {
        "type": "bar",
        "orientation": "h",
        "y": names,
        "x": [means[name] for name in names],
        "customdata": by_round,
        "hovertemplate": "%{y}: %{x:+.2f} %<br>%{customdata}<extra></extra>",
        "marker": {"color": [HELPS if means[name] > 0 else HARMS for name in names]},
    }
    layout = axes("fall of the validation loss (%)", "")
    layout["xaxis"] |= {"zeroline": True, "zerolinecolor": INK}
    layout["yaxis"] |= {"type": "category"}
    height = 130 + 22 * len(names)
    return Figure(
        "transfer-gains",
        "Immediate effect of the server's rows",
        told,
        [trace],
        {**layout, "height": height},
        wide=True,
    )


def _heat_map(pairs: MeasuredPairs, mark: str) -> Figure:
    """Draw the transfer between all pairs: by round, and the mean."""
    count = len(pairs.members)
    shown = thinned(len(pairs.rounds), count**2)
    states = [*(pairs.transfer[i] for i in shown), pairs.mean]
    reach = _reach(np.array(states))
    trace = matrix(states[-1].tolist(), pairs.members, pairs.members, zmin=-reach, zmax=reach)
    trace |= {"autocolorscale": False, "colorscale": SCALE}
    trace |= {"hovertemplate": "%{y} → %{x}: %{z:+.2f} %<extra></extra>", "colorbar": {"thickness": 12, "title": "%"}}
    if count <= LABELLED:
        trace["texttemplate"] = "%{z:+.1f}"
    labels = [*(str(pairs.rounds[i]) for i in shown), "all, on average"]
    slider = Slider("round", labels, len(states) - 1)
    changes = [{"z": [state.tolist()]} for state in states]
    note = f"How much a row's client would help a column's: by how much its loss would fall (%), {WHOLE}."
    layout = matrix_layout(count)
    if count > LABELLED:
        layout |= {"height": 200 + max(360, 12 * min(count, 80))}
        layout["xaxis"] |= {"tickangle": -90, "tickfont": {"size": 9}}
    title = "Who would help whom"
    return Figure(f"transfer{mark}", title, note, [trace], layout, wide=True, sliders=[slider], changes=changes)


def _reach(values: Array) -> float:
    """The end of a colour scale; one outlier does not fade all others."""
    return max(float(np.nanquantile(np.abs(values), 0.98)), 1e-6)


def _graph(pairs: MeasuredPairs, mark: str) -> Figure:
    """Draw an arrow to each client, on the right, from the one whose update would help it most, on the left."""
    best = {name: giver for name in pairs.members if (giver := pairs.best_giver(name)) and giver[1] > 0}
    drawn = sorted(best, key=lambda name: best[name][1], reverse=True)[:ARROWS]
    givers = list(dict.fromkeys(best[name][0] for name in drawn))
    receivers = sorted(drawn, key=lambda name: givers.index(best[name][0]))  # so that few arrows cross
    at = {name: _middle(i, len(receivers)) for i, name in enumerate(receivers)}
    frm = {name: _middle(i, len(givers)) for i, name in enumerate(givers)}
    most = max((value for _, value in best.values()), default=1.0)
    arrows = [_arrow(frm[best[name][0]], at[name], best[name][1] / most) for name in receivers]
    counts = {giver: sum(best[name][0] == giver for name in receivers) for giver in givers}
    left = _names(0, frm, [f"would help {counts[name]} most" for name in givers], "middle left")
    right = _names(1, at, [f"{best[name][0]}: {gain_text(best[name][1])}" for name in receivers], "middle right")
    hidden = {"visible": False, "fixedrange": True}
    room = 24 + 7 * max(map(len, pairs.members))
    layout = {
        "xaxis": {**hidden, "range": [0, 1]},
        "yaxis": {**hidden, "range": [1, 0]},
        "annotations": arrows,
        "showlegend": False,
        "height": max(300, 60 + 24 * len(receivers)),
        "margin": {"l": min(room, 180), "r": min(room, 180), "t": 10, "b": 10},
    }
    note = (
        f"To each client on the right, from the one on the left whose update would help it most, {WHOLE}, on average "
        f"over the measured rounds; thick arrows help more. "
        f"{len(pairs.members) - len(best)} of {len(pairs.members)} clients would not be helped by any."
    )
    if len(best) > ARROWS:
        note += f" The {ARROWS} strongest of {len(best)} arrows are drawn."
    return Figure(f"giving{mark}", "Who gives to whom", note, [left, right], layout, wide=True)


def _middle(number: int, count: int) -> float:
    """The height of one of several names, between 0 and 1."""
    return (number + 0.5) / count


def _names(x: float, at: Mapping[str, float], told: list[str], position: str) -> dict[str, Any]:
    """Names in a column, each with a point."""
    text = {"text": list(at), "textposition": position, "cliponaxis": False}
    hover = {"customdata": told, "hovertemplate": "%{text}<br>%{customdata}<extra></extra>"}
    points = {"x": [x] * len(at), "y": list(at.values()), "marker": {"size": 9, "color": INK}}
    return {"type": "scatter", "mode": "markers+text", **points, **text, **hover}


def _arrow(start: float, end: float, share: float) -> dict[str, Any]:
    """An arrow from a height on the left to one on the right, as thick as its share of the strongest."""
    ends = {"ax": 0, "ay": start, "axref": "x", "ayref": "y", "x": 1, "y": end}
    look = {"arrowhead": 2, "arrowwidth": 1 + 3 * share, "arrowsize": 0.8, "arrowcolor": HELPS, "opacity": 0.8}
    return {**ends, **look, "text": "", "showarrow": True, "standoff": 8, "startstandoff": 8}


def _points(pairs: MeasuredPairs, mark: str) -> Figure:
    """Draw every pair by the cosine and the magnitude similarity of its updates, coloured by its transfer if known."""
    one, other = np.triu_indices(len(pairs.members), 1)
    kept = thinned(len(one), most=POINTS)
    one, other = one[kept], other[kept]
    shown = thinned(len(pairs.rounds), 3 * len(kept))
    transfer = [(pairs.transfer[i][one, other] + pairs.transfer[i][other, one]) / 2 for i in shown]
    changes = [
        {"x": [pairs.cosine[i][one, other].tolist()], "y": [pairs.magnitude[i][one, other].tolist()]} for i in shown
    ]
    marker: dict[str, Any] = {"size": 9, "color": INK, "line": {"width": 1, "color": INK}}
    if not np.isnan(transfer).all():
        reach = _reach(np.array(transfer))
        marker |= {"color": transfer[-1].tolist(), "colorscale": SCALE, "cmin": -reach, "cmax": reach}
        marker |= {"colorbar": {"thickness": 12, "title": "%"}}
        changes = [{**change, "marker.color": [z.tolist()]} for change, z in zip(changes, transfer, strict=True)]
    trace = {
        "type": "scatter",
        "mode": "markers",
        "x": changes[-1]["x"][0],
        "y": changes[-1]["y"][0],
        "text": [f"{pairs.members[i]} and {pairs.members[j]}" for i, j in zip(one, other, strict=True)],
        "hovertemplate": "%{text}<br>cosine %{x:.3f}, magnitude similarity %{y:.3f}<extra></extra>",
        "marker": marker,
    }
    reach = min(1.05, max(0.2, 1.15 * max(float(np.nanmax(np.abs(change["x"]))) for change in changes)))
    layout = axes("cosine of the two updates", "magnitude similarity", height=430)
    layout["xaxis"] |= {"range": [-reach, reach], "zeroline": True, "zerolinecolor": INK}
    layout["yaxis"] |= {"range": [-0.05, 1.1]}
    note = (
        "Left of 0 the updates of a pair conflict, right of it they agree. Near 0, a pair at the top has updates of "
        "one size in unrelated directions: no conflict. At the bottom, one update is far smaller than the other and "
        "hardly counts: no interaction. Colours show how much they would help each other on average."
    )
    slider = Slider("round", [str(pairs.rounds[i]) for i in shown], len(shown) - 1)
    title = "Conflict, or no interaction"
    return Figure(f"pairs{mark}", title, note, [trace], layout, wide=True, sliders=[slider], changes=changes)
