"""Who helps whom: the effect of the server's update on each client, and of each client's update on the others."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

import numpy as np

from fedhca2.reports.figures import COLOURS, GREY, MAX_LABELLED, Figure, Slider, axes, gain_bars, heat_map, thin
from fedhca2.reports.figures.conflict import cosines
from fedhca2.reports.figures.curves import series
from fedhca2.reports.figures.groups import MemberEvents, by_members, group_clients, mean_of
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.words import counted, gain_text

HOW_TO_READ = "Each client's validation loss with and without the server's update, before further training."
HELPS, HARMS = COLOURS[2], COLOURS[1]
SCALE = [[0.0, HARMS], [0.5, "#F7F7F7"], [1.0, HELPS]]


def predicted_transfer(group: MemberEvents) -> list[Array]:
    """[giver, receiver] by measured round: the fall of the receiver's loss in percent, NaN if it was not measured."""
    measured = group.matrices(lambda event: event.get("transfer", np.full(np.shape(event["products"]), np.nan)))
    return [100 * each for each in measured]


def best_givers(group: MemberEvents) -> dict[str, tuple[str, float]]:
    """By client, whose update would help it most on average, and by how much, if any was measured."""
    columns = zip(group.members, mean_of(predicted_transfer(group)).T, strict=True)
    known = {receiver: column for receiver, column in columns if not np.isnan(column).all()}
    return {name: (group.members[np.nanargmax(own)], float(np.nanmax(own))) for name, own in known.items()}


def magnitude_similarity(gram: Array) -> Array:
    """2‖Δ_i‖‖Δ_j‖ / (‖Δ_i‖² + ‖Δ_j‖²) from a Gram matrix: 1 for updates of one length, 0 if one is far shorter.

    >>> magnitude_similarity(np.array([[4.0, 0.0], [0.0, 1.0]])).tolist()
    [[1.0, 0.8], [0.8, 1.0]]
    """
    squares = np.clip(gram.diagonal(), np.finfo(float).tiny, None)
    return np.asarray(2 * np.sqrt(np.outer(squares, squares)) / np.add.outer(squares, squares))


def client_gains(run: RunFiles) -> dict[str, dict[int, float]]:
    """By client and round, how much smaller its validation loss was after the server's rows, in percent."""
    effects = [event for event in run.of("effect") if event["before"] > 0]
    return series(effects, lambda event: 100 * (1 - event["after"] / event["before"]), first=0)


def list_pairs(run: RunFiles) -> list[MemberEvents]:
    """The measurements of every layout. If no transfer was measured, the updates that the server compared."""
    events = run.of("transfer")
    rounds = {event["round"] - 1 for event in run.of("effect")} if not events else set()
    if rounds:
        compared = [event for event in run.of("aggregation") if event["round"] in rounds and len(event["members"]) > 1]
        events = [event for event in compared if (event["part"], event["measure"]) == ("encoder", "rows")]
    return by_members(events, group_clients(run))


def transfer_sentences(run: RunFiles) -> list[str]:
    """Say who gained and who helps, over all measured rounds; empty without `diagnostics`."""
    gains = {client: fmean(by_round.values()) for client, by_round in client_gains(run).items()}
    pairs, sentences = list_pairs(run), []
    if run.config.get("diagnostics") and not gains and not pairs:
        sentences.append("Who helps whom was not measured: in no measured round did clients share encoders.")
    if gains:
        sentences.append(_immediate_effect(gains, pairs))
    for group in pairs:
        rows = zip(group.members, mean_of(predicted_transfer(group)), strict=True)
        helps = {name: float(np.nanmean(row)) for name, row in rows if not np.isnan(row).all()}
        if helps:
            most, least = max(helps, key=helps.__getitem__), min(helps, key=helps.__getitem__)
            first, last = ("help the others most", "least") if helps[most] > 0 else ("harm the others least", "most")
            sentences.append(
                f"Added as a whole, the update of {most} would {first} ({loss_change(helps[most])} on average), "
                f"and that of {least} {last} ({loss_change(helps[least])})."
            )
    return sentences


def _immediate_effect(gains: Mapping[str, float], pairs: Sequence[MemberEvents]) -> str:
    """Say whose loss the server's update lowered, and how a rise can agree with Δm."""
    most, least = max(gains, key=gains.__getitem__), min(gains, key=gains.__getitem__)
    better, of = sum(gain > 0 for gain in gains.values()), counted(len(gains), "client")
    sentence = f"The server's update lowered the validation loss of {better} of {of} at once: it "
    sentence += f"{'fell most' if gains[most] > 0 else 'rose least'} for {most} ({loss_change(gains[most])})"
    if least != most:
        how = "rose most" if gains[least] < 0 else "fell least"
        sentence += f", and {how} for {least} ({loss_change(gains[least])})"
    givers = [best for group in pairs if (best := best_givers(group).get(most)) and best[1] > 0]
    for giver, gain in givers[:1]:
        sentence += f". The update of {giver}, added as a whole, would help {most} most ({loss_change(gain)})"
    if better < len(gains):
        sentence += ". A loss that rises at once can still end lower: Δm compares scores at the end of whole runs"
    return f"{sentence}."


def loss_change(gain: float) -> str:
    """The relative change of a loss, from how much smaller it became in percent.

    >>> loss_change(2.5), loss_change(-1.0)
    ('loss -2.50%', 'loss +1.00%')
    """
    return f"loss {gain_text(-gain)}"


def transfer_figures(run: RunFiles) -> list[Figure]:
    """Draw every client's gain, transfer between pairs as heat map and graph, and how pairs of updates relate."""
    gains = client_gains(run)
    figures = [_gain_bars(gains, " ".join([HOW_TO_READ, *transfer_sentences(run)]))] if gains else []
    for group in list_pairs(run):
        transfer = predicted_transfer(group)
        if not np.isnan(transfer).all():
            figures += [_heat_map(group, transfer), _graph(group)]
        figures.append(_points(group, transfer))
    return figures


def _gain_bars(gains: Mapping[str, Mapping[int, float]], note: str, most: int = 40) -> Figure:
    """Draw a bar for every client, the mean over rounds; of more than `most` clients, those at both ends."""
    means = {client: fmean(by_round.values()) for client, by_round in gains.items()}
    names = sorted(means, key=means.__getitem__)
    if len(names) > most:
        names = names[: most // 2] + names[-most // 2 :]
        note += f" Shown: the {most // 2} largest and the {most // 2} smallest of {len(means)} clients."
    by_round = [
        ", ".join(f"round {round}: {gain_text(gain)}" for round, gain in sorted(gains[name].items())[-12:])
        for name in names
    ]
    hover = {"customdata": by_round, "hovertemplate": "%{y}: %{x:+.2f}%<br>%{customdata}<extra></extra>"}
    marker = {"color": [HELPS if means[name] > 0 else HARMS for name in names]}
    trace = gain_bars("", GREY, names, [means[name] for name in names], marker=marker, **hover)
    layout = axes("decrease in validation loss (%)", "", height=130 + 22 * len(names))
    layout["xaxis"] |= {"zeroline": True, "zerolinecolor": GREY}
    layout["yaxis"] |= {"type": "category"}
    return Figure("transfer-gains", "Effect of the server's update", note, [trace], layout, wide=True)


def _heat_map(group: MemberEvents, transfer: Sequence[Array]) -> Figure:
    """Draw the transfer between all pairs: by round, and the mean."""
    count = len(group.members)
    shown = thin(len(transfer), count**2)
    states = [*(transfer[i] for i in shown), mean_of(transfer)]
    reach = _reach(states)
    look: dict[str, Any] = {"zmin": -reach, "zmax": reach, "autocolorscale": False, "colorscale": SCALE}
    look |= {"hovertemplate": "%{y} → %{x}: %{z:+.2f}%<extra></extra>", "colorbar": {"thickness": 12, "title": "%"}}
    if count <= MAX_LABELLED:
        look["texttemplate"] = "%{z:+.1f}"
    look["sliders"] = [Slider.of_rounds([*(group.rounds[i] for i in shown), "mean"])]
    note = "Decrease (%) in the column's loss if the row's update were added to its encoder as a whole."
    title = "Predicted transfer (row → column)"
    figure = heat_map(f"transfer{group.mark}", title, note, states, group.members, **look)
    if count > MAX_LABELLED:
        figure.layout["height"] = 200 + max(360, 12 * min(count, 80))
        figure.layout["xaxis"] |= {"tickangle": -90, "tickfont": {"size": 9}}
    return figure


def _reach(values: Sequence[Array]) -> float:
    """The end of a colour scale; one outlier does not fade all others."""
    return max(float(np.nanquantile(np.abs(values), 0.98)), 1e-6)


def _graph(group: MemberEvents, most: int = 60) -> Figure:
    """Draw an arrow to each client, on the right, from the one whose update would help it most, on the left."""
    best = {name: giver for name, giver in best_givers(group).items() if giver[1] > 0}
    strongest_first = sorted(best, key=lambda name: best[name][1], reverse=True)[:most]
    givers = list(dict.fromkeys(best[name][0] for name in strongest_first))
    receivers = sorted(strongest_first, key=lambda name: givers.index(best[name][0]))  # so that few arrows cross
    counts = Counter(best[name][0] for name in receivers)
    left_hover = [f"would help {counts[name]} most" for name in givers]
    right_hover = [f"{best[name][0]}: {gain_text(best[name][1])}" for name in receivers]
    left, right = ({name: (i + 0.5) / len(names) for i, name in enumerate(names)} for names in (givers, receivers))
    strongest = max((value for _, value in best.values()), default=1.0)
    look = {"axref": "x", "ayref": "y", "ax": 0, "x": 1, "standoff": 8, "startstandoff": 8, "showarrow": True}
    look |= {"text": "", "arrowhead": 2, "arrowsize": 0.8, "arrowcolor": HELPS, "opacity": 0.8}
    arrows = [
        {**look, "ay": left[best[name][0]], "y": right[name], "arrowwidth": 1 + 3 * best[name][1] / strongest}
        for name in receivers
    ]
    hidden, room = {"visible": False, "fixedrange": True}, min(24 + 7 * max(map(len, group.members)), 180)
    layout = {"xaxis": {**hidden, "range": [0, 1]}, "yaxis": {**hidden, "range": [1, 0]}, "showlegend": False}
    layout |= {"annotations": arrows, "height": max(300, 60 + 24 * len(receivers))}
    layout |= {"margin": {"l": room, "r": room, "t": 10, "b": 10}}
    note = (
        "Left: the client whose update would help the client on the right most, on average over the measured rounds. "
        "Thicker arrows help more. "
        f"No update would help {len(group.members) - len(best)} of {counted(len(group.members), 'client')}."
    )
    if len(best) > most:
        note += f" Shown: the {most} strongest of {len(best)} arrows."
    traces = [_names(0, left, left_hover, "middle left"), _names(1, right, right_hover, "middle right")]
    return Figure(f"giving{group.mark}", "Best donor for each client", note, traces, layout, wide=True)


def _names(x: float, at: Mapping[str, float], hover_texts: list[str], position: str) -> dict[str, Any]:
    """Names in a column, each with a point."""
    text = {"text": list(at), "textposition": position, "cliponaxis": False}
    hover = {"customdata": hover_texts, "hovertemplate": "%{text}<br>%{customdata}<extra></extra>"}
    points = {"x": [x] * len(at), "y": list(at.values()), "marker": {"size": 9, "color": GREY}}
    return {"type": "scatter", "mode": "markers+text", **points, **text, **hover}


def _points(group: MemberEvents, transfer: Sequence[Array]) -> Figure:
    """Draw every pair by the cosine and the magnitude similarity of its updates, coloured by its transfer if known."""
    one, other = np.triu_indices(len(group.members), 1)
    some = thin(len(one), most=4_000)
    one, other = one[some], other[some]
    shown = thin(len(transfer), 3 * len(some))
    both = [(transfer[i][one, other] + transfer[i][other, one]) / 2 for i in shown]
    products = group.matrices(lambda event: event["products"])
    measures = [(cosines(products[i], "rows"), magnitude_similarity(products[i])) for i in shown]
    changes = [{"x": [cosine[one, other].tolist()], "y": [size[one, other].tolist()]} for cosine, size in measures]
    marker: dict[str, Any] = {"size": 9, "color": GREY, "line": {"width": 1, "color": GREY}}
    if not np.isnan(both).all():
        scale = _reach(both)
        marker |= {"color": both[-1].tolist(), "colorscale": SCALE, "cmin": -scale, "cmax": scale}
        marker |= {"colorbar": {"thickness": 12, "title": "%"}}
        changes = [{**change, "marker.color": [z.tolist()]} for change, z in zip(changes, both, strict=True)]
    text = [f"{group.members[i]} and {group.members[j]}" for i, j in zip(one, other, strict=True)]
    hover = "%{text}<br>cosine %{x:.3f}, magnitude similarity %{y:.3f}<extra></extra>"
    last = {axis: changes[-1][axis][0] for axis in "xy"}
    trace = {"type": "scatter", "mode": "markers", **last, "text": text, "hovertemplate": hover, "marker": marker}
    reach = min(1.05, max(0.2, 1.15 * max(float(np.nanmax(np.abs(change["x"]))) for change in changes)))
    layout = axes("cosine of the two updates", "magnitude similarity", height=430)
    layout["xaxis"] |= {"range": [-reach, reach], "zeroline": True, "zerolinecolor": GREY}
    layout["yaxis"] |= {"range": [-0.05, 1.1]}
    note = (
        "Left of 0 the updates of a pair conflict; right of 0 they agree. Near 0, they are unrelated. "
        "Top: updates of equal size. Bottom: one update is far smaller and hardly counts. "
        "Colour: how much they would help each other on average."
    )
    slider = Slider.of_rounds([group.rounds[i] for i in shown])
    title = "Update similarity by pair"
    return Figure(f"pairs{group.mark}", title, note, [trace], layout, True, [slider], changes)
