"""How clients were mixed: attention among decoders, groups, and the votes of layers."""

from collections.abc import Iterable, Sequence

import numpy as np

from fedhca2.reports.figures.curves import decoder_tensors
from fedhca2.reports.figures.figure import Figure, Slider, line, matrix, matrix_layout, round_axes, thinned
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles


def attention_figures(run: RunFiles) -> list[Figure]:
    """Draw the attention of each decoder on the others, tensor by tensor, and its entropy over rounds."""
    events = [
        e for e in run.of("aggregation") if e["part"] == "decoder" and e["mixing"] and _depth(e["mixing"][0]) == 3
    ]
    groups = [events for _, events in by_members(events)]
    return [figure for number, events in enumerate(groups) for figure in _attention(run, events, _mark(number))]


def _attention(run: RunFiles, events: list[Event], mark: str) -> list[Figure]:
    """Draw the attention among decoders of one layout."""
    last = events[-1]
    weights = np.array(last["mixing"][0])
    client, _, task = last["members"][0].partition("/")
    names = decoder_tensors(run, client, task)
    if len(names) != len(weights):
        names = [f"tensor {i + 1}" for i in range(len(weights))]
    decoders = [run.short_name(member) for member in last["members"]]
    trace = matrix(weights[-1].tolist(), decoders, decoders, zmin=0, zmax=float(weights.max()), texttemplate="%{z:.3f}")
    steps = Slider("tensor", names, [{"z": [state.tolist()]} for state in weights])
    note = f"Round {last['round'] + 1}: how much of each decoder's update (column) the decoder of a row adds."
    layout = matrix_layout(len(decoders))
    entropies = np.array([[entropy(state) for state in np.array(event["mixing"][0])] for event in events])
    rounds = [event["round"] + 1 for event in events]
    traces = [line(name, i, rounds, entropies[:, i].tolist()) for i, name in enumerate(names)]
    told = "1: attention is spread evenly, a plain mean; 0: each decoder attends to only one."
    over = round_axes(run.rounds, "entropy / log K")
    over["yaxis"]["range"] = [min(0.9, float(entropies.min()) - 0.02), 1.01]
    return [
        Figure(f"attention{mark}", "Attention among decoders", note, [trace], layout, wide=True, slider=steps),
        Figure(f"entropy{mark}", "Entropy of the attention", told, traces, {**over, "height": 420}, wide=True),
    ]


def entropy(weights: Array) -> float:
    """Mean entropy of the rows of a matrix of shares, relative to the largest possible.

    >>> entropy(np.full((2, 2), 0.5)), entropy(np.eye(2))
    (1.0, 0.0)
    """
    safe = np.where(weights > 0, weights, 1.0)
    return float(abs(-(weights * np.log(safe)).sum(axis=1).mean()) / np.log(max(weights.shape[1], 2)))


def grouping_figures(run: RunFiles) -> list[Figure]:
    """Draw how often clients were aggregated together, if a method groups them, and how their layers voted."""
    events = [event for event in run.of("aggregation") if event["part"] == "encoder" and _grouped(event)]
    groups = enumerate(by_members(events))
    return [figure for number, group in groups for figure in _grouping(*group, _mark(number))]


def _grouping(members: list[str], events: list[Event], mark: str) -> list[Figure]:
    """Draw the groups among encoders of one layout."""
    states = np.array([spread(shares(event), event["members"], members) for event in events])
    met = (~np.isnan(states)).sum(axis=0)
    together = np.where(met, (states > 0).sum(axis=0) / np.maximum(met, 1), np.nan)
    note = "Share of their common rounds in which the client of a row got a part of the client of a column."
    trace = matrix(together.tolist(), members, members, zmin=0, zmax=1)
    figures = [
        Figure(f"grouping{mark}", "Who is grouped with whom", note, [trace], matrix_layout(len(members)), wide=True)
    ]
    chosen = thinned(len(events))
    changes = [{"z": [states[i].tolist()]} for i in chosen]
    steps = Slider("round", [str(events[i]["round"] + 1) for i in chosen], changes)
    note = "The weight of each client (column) in what the client of a row gets."
    trace = matrix(states[-1].tolist(), members, members, zmin=0, zmax=1)
    layout = matrix_layout(len(members))
    figures.append(Figure(f"mixing{mark}", "Weights by round", note, [trace], layout, wide=True, slider=steps))
    return figures + _votes(events, members, mark)


def _mark(number: int) -> str:
    """What tells the figures of further layouts from those of the first."""
    return f"-{number}" if number else ""


def shares(event: Event) -> Array:
    """The share of each member's row in what every member gets, [N, N], from the first blend of an aggregation.

    >>> shares({"mixing": [[[0.5, 0.5, 0], [0, 0, 1]]], "gets": [[0, 0, 1]]}).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    weights: Array = np.array(event["mixing"][0], dtype=float)
    return weights[list(event["gets"][0])]


def _grouped(event: Event) -> bool:
    """Whether members get different mixtures, with one matrix for the whole row."""
    return bool(event["mixing"]) and _depth(event["mixing"][0]) == 2 and len(event["mixing"][0]) > 1


def _votes(events: list[Event], members: list[str], mark: str) -> list[Figure]:
    """Draw the mean votes of each voting layer over rounds, with a slider over clients."""
    voted = [spread(np.array(event["votes"]), event["members"], members) for event in events if event.get("votes")]
    if not voted:
        return []
    cast = [~np.isnan(votes) for votes in voted]
    mean = np.nansum(voted, axis=0) / np.maximum(np.sum(cast, axis=0), 1)
    layers = [f"layer {i - len(mean)}" for i in range(len(mean))]
    trace = matrix(mean[:, -1].tolist(), layers, members, zmin=0, zmax=float(mean.max()))
    steps = Slider("client", members, [{"z": [mean[:, i].tolist()]} for i in range(len(members))])
    note = "Mean votes over all rounds; the voting layers are counted from the encoder's last one."
    layout = matrix_layout(len(layers))
    return [Figure(f"votes{mark}", "Votes of layers", note, [trace], layout, wide=True, slider=steps)]


def _depth(value: object) -> int:
    return 1 + _depth(value[0]) if isinstance(value, list) and value else 0


def by_members(events: Iterable[Event]) -> list[tuple[list[str], list[Event]]]:
    """Group aggregations that have members in common, each with all members it ever had.

    >>> rounds = [{"members": ["a", "b"]}, {"members": ["x", "y"]}, {"members": ["b", "c"]}]
    >>> [members for members, _ in by_members(rounds)]
    [['a', 'b', 'c'], ['x', 'y']]
    """
    groups: list[tuple[set[str], list[Event]]] = []
    for event in events:
        members = set(event["members"])
        known = next((group for group in groups if group[0] & members), None)
        if known is None:
            groups.append((members, [event]))
        else:
            known[0].update(members)
            known[1].append(event)
    return [(sorted(members), held) for members, held in groups]


def spread(values: Array, present: Sequence[str], members: Sequence[str]) -> Array:
    """Expand a matrix of the members present to all members, [..., N, N], with NaN for absent ones.

    >>> spread(np.ones((1, 1)), ["b"], ["a", "b"]).tolist()
    [[nan, nan], [nan, 1.0]]
    """
    places = [members.index(name) for name in present]
    whole = np.full((*values.shape[:-2], len(members), len(members)), np.nan)
    whole[..., np.array(places)[:, None], places] = values
    return whole
