"""How clients were mixed: attention among decoders, groups, and the votes of layers."""

from collections.abc import Mapping, Sequence

import numpy as np

from fedhca2.experiment.clients import client_kind
from fedhca2.reports.figures import Figure, Slider, matrix, matrix_layout, thinned
from fedhca2.reports.figures.curves import decoder_tensors
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
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles

PLAIN_MEAN = 0.99  # relative entropy from which attention hardly differs from a plain mean


def attention_figures(run: RunFiles) -> list[Figure]:
    """Draw the attention of each decoder on the others, by tensor and round, and how even it is."""
    events = [
        e for e in run.of("aggregation") if e["part"] == "decoder" and e["mixing"] and np.ndim(e["mixing"][0]) == 3
    ]
    cast = group_clients(run)
    groups = enumerate(by_members(events, cast))
    return [figure for number, group in groups for figure in _attention(run, cast, *group, _mark(number))]


def _attention(run: RunFiles, cast: ClientGroups, members: list[str], events: list[Event], mark: str) -> list[Figure]:
    """Draw the attention among decoders of one layout."""
    depth = max(len(event["mixing"][0]) for event in events)
    events = [event for event in events if len(event["mixing"][0]) == depth]
    evenness = np.array([[entropy(tensor) for tensor in numbers(event["mixing"][0])] for event in events])
    names = decoder_tensors(run, members[0])
    if len(names) != depth:
        names = [f"tensor {i + 1}" for i in range(depth)]
    rows = cast.rows(members)
    chosen = thinned(len(events), depth * len(rows) ** 2)
    states = [
        pooled(spread(numbers(events[i]["mixing"][0]), events[i]["members"], members), rows, itself=True)
        for i in chosen
    ]
    most_telling = int(evenness[-1].argmin())
    tensors = Slider("tensor", names, most_telling)
    rounds = Slider("round", [str(events[i]["round"] + 1) for i in chosen], len(chosen) - 1)
    changes = [{"z": [state[tensor].tolist()]} for tensor in range(depth) for state in states]
    highest = max(2 / len(members), *(float(np.nanmax(state)) for state in states))  # an even share is a middle tone
    shown = {"zmin": 0, "zmax": highest, "texttemplate": "%{z:.3f}" if len(rows) <= 20 else ""}
    trace = matrix(states[-1][most_telling].tolist(), list(rows), list(rows), **shown)
    note = "How much of each decoder's update (column) the decoder of a row adds. "
    note += in_words(evenness, events[-1].get("of", len(members)), names)
    title, layout = f"Attention among decoders{part_of(events)}", matrix_layout(len(rows))
    attention = Figure(f"attention{mark}", title, note, [trace], layout, True, [tensors, rounds], changes)
    if evenness.min() >= PLAIN_MEAN:
        return [attention]
    even = matrix(evenness.T.tolist(), names, [event["round"] + 1 for event in events], zmin=0, zmax=1)
    told = "Entropy of the attention. 1: spread evenly, a plain mean; 0: each decoder attends to only one."
    across = matrix_layout(depth, xaxis={"title": {"text": "round"}, "automargin": True, "showgrid": False})
    return [attention, Figure(f"entropy{mark}", "How even the attention is", told, [even], across, wide=True)]


def in_words(evenness: Array, members: int, names: Sequence[str]) -> str:
    """Say whether attention [rounds, tensors] differs from a plain mean, and where it does most.

    >>> in_words(np.array([[0.999, 0.995]]), 4, ["weight", "bias"])
    'It hardly differs from a plain mean: in every tensor and round, each decoder gets about 1/4 of all others.'
    >>> in_words(np.array([[0.999, 0.5]]), 4, ["weight", "bias"])
    'In the last round 1 of 2 tensors hardly differs from a plain mean; bias differs most.'
    """
    if evenness.min() >= PLAIN_MEAN:
        return (
            f"It hardly differs from a plain mean: in every tensor and round, each decoder gets about 1/{members} of "
            "all others."
        )
    even = int((evenness[-1] >= PLAIN_MEAN).sum())
    differs = f"{names[int(evenness[-1].argmin())]} differs most."
    verb = "differs" if even == 1 else "differ"
    return f"In the last round {even} of {len(names)} tensors hardly {verb} from a plain mean; {differs}"


def entropy(weights: Array) -> float:
    """Mean entropy of the rows of a matrix of shares, relative to the largest possible.

    >>> entropy(np.full((2, 2), 0.5)), entropy(np.eye(2))
    (1.0, 0.0)
    """
    weights = weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-12)  # of some members, if there are many
    safe = np.where(weights > 0, weights, 1.0)
    return float(abs(-(weights * np.log(safe)).sum(axis=1).mean()) / np.log(max(weights.shape[1], 2)))


def grouping_figures(run: RunFiles) -> list[Figure]:
    """Draw how often clients were aggregated together, if a method groups them, and how their layers voted."""
    events = [event for event in run.of("aggregation") if event["part"] == "encoder" and _grouped(event)]
    cast = group_clients(run)
    groups = enumerate(by_members(events, cast))
    kinds = {client: client_kind(run.dataset(client), tasks) for client, tasks in cast.tasks.items()}
    return [figure for number, group in groups for figure in _grouping(cast, kinds, *group, _mark(number))]


def _grouping(
    cast: ClientGroups, kinds: Mapping[str, str], members: list[str], events: list[Event], mark: str
) -> list[Figure]:
    """Draw the groups among encoders of one layout."""
    states = np.array([spread(shares(event), event["members"], members) for event in events])
    together = chosen_together(events, members)
    rows = cast.rows(members)
    names, layout = list(rows), matrix_layout(len(rows))
    note = "Share of their common rounds in which the client of a row chose the client of a column to aggregate with. "
    note += correctness(together, [kinds.get(member, member) for member in members])
    trace = matrix(pooled(together, rows, itself=True).tolist(), names, names, zmin=0, zmax=1)
    title = f"Who is grouped with whom{part_of(events)}"
    figures = [Figure(f"grouping{mark}", title, note, [trace], layout, wide=True)]
    chosen = thinned(len(events), len(rows) ** 2)
    steps = Slider("round", [str(events[i]["round"] + 1) for i in chosen], len(chosen) - 1)
    changes = [{"z": [pooled(states[i], rows, itself=True).tolist()]} for i in chosen]
    highest = float(np.nanmax(states[chosen]))
    trace = matrix(changes[-1]["z"][0], names, names, zmin=0, zmax=highest)
    note = "The weight of each client (column) in what the client of a row gets."
    figures.append(Figure(f"mixing{mark}", "Weights by round", note, [trace], layout, True, [steps], changes))
    return figures + _votes(events, members, mark)


def chosen_together(events: Sequence[Event], members: Sequence[str]) -> Array:
    """The share of their common rounds in which each member chose each other one, [N, N]; NaN without such a round."""
    chosen = np.array([spread(friends(event), event["members"], members) for event in events])
    met = (~np.isnan(chosen)).sum(axis=0)
    return np.where(met, np.nansum(chosen, axis=0) / np.maximum(met, 1), np.nan)


def friends(event: Event) -> Array:
    """Whom each member chose, as 0 or 1, [N, N]: where layers voted, the K members with the most votes.

    What a member gets is not enough to tell: members of one task get the mean of all that these chose.

    >>> friends({"votes": [[[2, 0, 1], [1, 2, 0], [0, 1, 2]]]}).tolist()
    [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    """
    if not event.get("votes"):
        return np.asarray(shares(event) > 0, dtype=float)
    votes = numbers(event["votes"])
    best = np.argsort(-votes.sum(axis=0), axis=1, kind="stable")[:, : int(votes.max())]
    chosen = np.zeros(votes.shape[1:])
    np.put_along_axis(chosen, best, 1.0, axis=1)
    return chosen


def correctness(together: Array, kinds: Sequence[str]) -> str:
    """Say how often members chose those of their own data set and tasks; nothing if no two are of a kind.

    >>> correctness(np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.2], [0.0, 0.0, 1.0]]), ["a", "a", "b"])
    'Clients chose those of the same data set and tasks in 75% of all cases, and others in 5%.'
    """
    same = np.array(kinds)[:, None] == np.array(kinds)
    others = ~np.eye(len(kinds), dtype=bool) & ~np.isnan(together)
    if not (same & others).any():
        return ""
    told = f"Clients chose those of the same data set and tasks in {together[same & others].mean():.0%} of all cases"
    return told + (f", and others in {together[~same & others].mean():.0%}." if (~same & others).any() else ".")


def _mark(number: int) -> str:
    """What tells the figures of further layouts from those of the first."""
    return f"-{number}" if number else ""


def shares(event: Event) -> Array:
    """The share of each member's row in what every member gets, [N, N], from the first blend of an aggregation.

    >>> shares({"mixing": [[[0.5, 0.5, 0], [0, 0, 1]]], "gets": [[0, 0, 1]]}).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    weights = numbers(event["mixing"][0])
    return weights[list(event["gets"][0])]


def _grouped(event: Event) -> bool:
    """Whether members get different mixtures, with one matrix for the whole row."""
    return bool(event["mixing"]) and np.ndim(event["mixing"][0]) == 2 and len(event["mixing"][0]) > 1


def _votes(events: list[Event], members: list[str], mark: str) -> list[Figure]:
    """Draw the mean votes of each voting layer over rounds, with a slider over clients, unless they are many."""
    voted = [
        spread(numbers(event["votes"]), event["members"], members) for event in events if event.get("votes") is not None
    ]
    if not voted or len(members) > MOST_ROWS:
        return []
    cast = [~np.isnan(votes) for votes in voted]
    mean = np.nansum(voted, axis=0) / np.maximum(np.sum(cast, axis=0), 1)
    layers = [f"layer {i - len(mean)}" for i in range(len(mean))]
    trace = matrix(mean[:, -1].tolist(), layers, members, zmin=0, zmax=float(mean.max()))
    steps = Slider("client", members, len(members) - 1)
    changes = [{"z": [mean[:, i].tolist()]} for i in range(len(members))]
    note = "Mean votes over all rounds; the voting layers are counted from the encoder's last one."
    layout = matrix_layout(len(layers))
    return [Figure(f"votes{mark}", "Votes of layers", note, [trace], layout, True, [steps], changes)]
