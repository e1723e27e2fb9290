"""How clients were mixed: attention among decoders, groups, and the votes of layers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import entr

from fedhca2.experiment.clients import client_kind
from fedhca2.reports.figures import Figure, Slider, Trace, heat_map
from fedhca2.reports.figures.curves import decoder_tensors
from fedhca2.reports.figures.groups import MAX_ROWS, MemberEvents, by_members, group_clients, mean_of, pool
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles

PLAIN_MEAN = 0.99  # relative entropy from which attention hardly differs from a plain mean


def attention_figures(run: RunFiles) -> list[Figure]:
    """Draw the attention of each decoder on the others, by tensor and round, and how even it is."""
    return [figure for group in _mixed(run, "decoder", axes=3) for figure in _attention(run, group)]


def _mixed(run: RunFiles, part: str, axes: int) -> list[MemberEvents]:
    """The aggregations of a part with one mixture per member, if `axes` is 2, or per tensor and member, if it is 3."""
    events = [e for e in run.of("aggregation") if e["part"] == part and e["mixing"] and np.ndim(e["mixing"][0]) == axes]
    return by_members([e for e in events if axes == 3 or len(e["mixing"][0]) > 1], group_clients(run))


def _attention(run: RunFiles, group: MemberEvents) -> list[Figure]:
    """Draw the attention among decoders of one layout."""
    mark, members, rows = group.mark, group.members, group.rows
    depth = max(len(event["mixing"][0]) for event in group.events)
    group = replace(group, events=[event for event in group.events if len(event["mixing"][0]) == depth])
    evenness = np.array([[entropy(np.array(tensor)) for tensor in event["mixing"][0]] for event in group.events])
    names = decoder_tensors(run, members[0])
    if len(names) != depth:
        names = [f"tensor {i + 1}" for i in range(depth)]
    shown = group.thin_out(depth * len(rows) ** 2)
    states = shown.matrices(lambda event: event["mixing"][0], pooled=True)
    highest = max(2 / len(members), *(float(np.nanmax(state)) for state in states))  # an even share is a middle tone
    look: Trace = {"zmin": 0, "zmax": highest, "texttemplate": "%{z:.3f}" if len(rows) <= 20 else ""}
    look["sliders"] = [Slider("tensor", names, int(evenness[-1].argmin())), Slider.of_rounds(shown.rounds)]
    note = "Row: receiving decoder. Column: source. Value: attention weight. "
    note += describe_attention(evenness, group.events[-1].get("of", len(members)), names)
    title, by_tensor = f"Attention among decoders{group.part}", [state[i] for i in range(depth) for state in states]
    attention = heat_map(f"attention{mark}", title, note, by_tensor, list(rows), **look)
    if evenness.min() >= PLAIN_MEAN:
        return [attention]
    note = "1: uniform, a plain mean; 0: a single source."
    layout = {"xaxis": {"title": {"text": "round"}, "automargin": True, "showgrid": False}}
    about = (f"entropy{mark}", "Attention entropy", note)
    return [attention, heat_map(*about, [evenness.T], names, group.rounds, layout=layout, zmin=0, zmax=1)]


def describe_attention(evenness: Array, members: int, names: Sequence[str]) -> str:
    """Say whether attention [rounds, tensors] differs from a plain mean, and where it does most.

    >>> describe_attention(np.array([[0.999, 0.995]]), 4, ["weight", "bias"])
    'It hardly differs from a plain mean: in every tensor and round, each decoder gets a weight of about 1/4.'
    >>> describe_attention(np.array([[0.999, 0.5]]), 4, ["weight", "bias"])
    'In the last round 1 of 2 tensors hardly differs from a plain mean; bias differs most.'
    """
    if evenness.min() >= PLAIN_MEAN:
        alike = f"each decoder gets a weight of about 1/{members}"
        return f"It hardly differs from a plain mean: in every tensor and round, {alike}."
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
    return float(entr(weights).sum(axis=1).mean() / np.log(max(weights.shape[1], 2)))


def exchange_sentence(run: RunFiles) -> list[str]:
    """Say whose encoders a client's encoder took in, over all rounds; empty if the run's numbers do not say."""
    events = [e for e in run.of("aggregation") if e["part"] == "encoder" and e["mixing"] and "of" not in e]
    learned = {event["round"]: event["weights"] for event in run.of("weights")}
    sums = np.zeros(3)  # its own, those of clients with the same data and tasks, and those of others
    for event in events:
        weights = learned.get(event["round"], {})
        applied = applied_weights(event, [weights.get(f"{client}/encoder", [])[:1] for client in event["members"]])
        kinds = np.array([run.kinds.get(client, client) for client in event["members"]])
        own, alike = np.eye(len(kinds), dtype=bool), kinds[:, None] == kinds
        sums += [applied[own].sum(), applied[alike & ~own].sum(), applied[~alike].sum()]
    if sums[1:].sum() <= 0:
        return []
    own_share, alike_share, other_share = sums / sums.sum()
    same = f", {alike_share:.0%} from clients with the same data and tasks" if alike_share else ""
    rest = f" and {other_share:.0%} from {'other groups' if alike_share else 'the others'}"
    last = max(learned, default=0)
    beta = [float(np.mean(value)) for key, value in learned.get(last, {}).items() if "/decoder." in key]
    decoders = f" Decoders added the others' updates with a weight β of {np.mean(beta):.2f} at the end." if beta else ""
    return [f"A client's new encoder has {own_share:.0%} of its weight from its own training{same}{rest}.{decoders}"]


def applied_weights(event: Event, learned: Sequence[Sequence[float]]) -> Array:
    """The weight of each member's row in what every member takes in, [N, N].

    Members with a `learned` weight apply it to the last blend; if that is the only one, they keep their own row.

    >>> applied_weights({"mixing": [[[0.5, 0.5]]], "gets": [[0, 0]]}, [[0.2], [0.2]]).tolist()
    [[1.1, 0.1], [0.1, 1.1]]
    """
    blends = []
    for weights, gets in zip(event["mixing"], event["gets"], strict=True):
        blend = np.array(weights, dtype=float)
        blends.append((blend.mean(axis=0) if blend.ndim == 3 else blend)[list(gets)])
    if all(learned):
        blends[-1] = blends[-1] * np.array(learned)
        blends += [np.eye(len(learned))] * (len(blends) == 1)
    return np.asarray(sum(blends))


def grouping_figures(run: RunFiles) -> list[Figure]:
    """Draw how often clients were aggregated together, if a method groups them, and how their layers voted."""
    return [figure for group in _mixed(run, "encoder", axes=2) for figure in _grouping(run, group)]


def _grouping(run: RunFiles, group: MemberEvents) -> list[Figure]:
    """Draw the groups among encoders of one layout."""
    members, rows = group.members, group.rows
    together = mean_of(group.matrices(chosen_members))
    kinds = {event["client"]: client_kind(event["dataset"], event["tasks"]) for event in run.of("profile")} | run.kinds
    note = "How often the row's client chose the column's client to aggregate with, in rounds with both. "
    note += describe_choices(together, [kinds.get(member, member) for member in members])
    title, states = f"Who is grouped with whom{group.part}", [pool(together, rows, itself=True)]
    figures = [heat_map(f"grouping{group.mark}", title, note, states, list(rows), zmin=0, zmax=1)]
    shown = group.thin_out(len(rows) ** 2)
    note, highest = "Row: receiving client. Column: source. Value: weight.", np.nanmax(shown.matrices(first_weights))
    about, states = (f"mixing{group.mark}", "Weights per round", note), shown.matrices(first_weights, pooled=True)
    sliders = [Slider.of_rounds(shown.rounds)]
    figures.append(heat_map(*about, states, list(rows), sliders=sliders, zmin=0, zmax=float(highest)))
    voted = replace(group, events=[event for event in group.events if event.get("votes") is not None])
    if voted.events and len(members) <= MAX_ROWS:
        mean = np.nan_to_num(mean_of(voted.matrices(lambda event: event["votes"])))
        layers = [f"layer {i - len(mean)}" for i in range(len(mean))]
        note = "Mean votes over all rounds. Layers are numbered from the end of the encoder."
        slider, states = Slider("client", members, len(members) - 1), [mean[:, i] for i in range(len(members))]
        about, highest = (f"votes{group.mark}", "Layer votes", note), float(mean.max())
        figures.append(heat_map(*about, states, layers, members, sliders=[slider], zmin=0, zmax=highest))
    return figures


def chosen_members(event: Event) -> Array:
    """Whom each member chose, as 0 or 1, [N, N]: where layers voted, the K members with the most votes.

    What a member gets is not enough to tell: members of one task get the mean of all that these chose.

    >>> chosen_members({"votes": [[[2, 0, 1], [1, 2, 0], [0, 1, 2]]]}).tolist()
    [[1.0, 0.0, 1.0], [1.0, 1.0, 0.0], [0.0, 1.0, 1.0]]
    """
    if not event.get("votes"):
        return np.asarray(first_weights(event) > 0, dtype=float)
    votes = np.array(event["votes"], dtype=float)
    best = np.argsort(-votes.sum(axis=0), axis=1, kind="stable")[:, : int(votes.max())]
    chosen = np.zeros(votes.shape[1:])
    np.put_along_axis(chosen, best, 1.0, axis=1)
    return chosen


def describe_choices(together: Array, kinds: Sequence[str]) -> str:
    """Say how often members chose those of their own data set and tasks; nothing if no two are of a kind.

    >>> describe_choices(np.array([[1.0, 0.5, 0.0], [1.0, 1.0, 0.2], [0.0, 0.0, 1.0]]), ["a", "a", "b"])
    'Clients chose clients with the same data and tasks in 75% of cases, and others in 5%.'
    """
    same = np.array(kinds)[:, None] == np.array(kinds)
    others = ~np.eye(len(kinds), dtype=bool) & ~np.isnan(together)
    if not (same & others).any():
        return ""
    sentence = f"Clients chose clients with the same data and tasks in {together[same & others].mean():.0%} of cases"
    return sentence + (f", and others in {together[~same & others].mean():.0%}." if (~same & others).any() else ".")


def first_weights(event: Event) -> Array:
    """The share of each member's row in what every member gets, [N, N], from the first blend of an aggregation.

    >>> first_weights({"mixing": [[[0.5, 0.5, 0], [0, 0, 1]]], "gets": [[0, 0, 1]]}).tolist()
    [[0.5, 0.5, 0.0], [0.5, 0.5, 0.0], [0.0, 0.0, 1.0]]
    """
    weights = np.array(event["mixing"][0], dtype=float)
    return weights[list(event["gets"][0])]
