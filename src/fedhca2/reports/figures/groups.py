"""The clients of a run: their labels, order and colours in every figure, and who took part in which round."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from fedhca2.experiment.clients import client_kind
from fedhca2.reports.figures import COLOURS, GREY, Figure, matrix, matrix_layout
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles

MANY = len(COLOURS)  # more clients than this are drawn by kind
MOST_ROWS = 60  # of a matrix: more members than this are drawn by kind
OTHERS = "other kinds"


@dataclass(frozen=True)
class ClientGroups:
    """The clients by label, in the order of the config: each alone or, if they are many, together with its kind."""

    groups: Mapping[str, Sequence[str]]
    tasks: Mapping[str, Sequence[str]]

    @property
    def by_kind(self) -> bool:
        """Whether a label stands for all clients of a kind."""
        return any(clients != [label] for label, clients in self.groups.items())

    @property
    def colours(self) -> dict[str, str]:
        """The colour of each label."""
        return {label: GREY if label == OTHERS else COLOURS[i % MANY] for i, label in enumerate(self.groups)}

    @property
    def labels(self) -> dict[str, str]:
        """The label of each client."""
        return {client: label for label, clients in self.groups.items() for client in clients}

    @property
    def places(self) -> dict[str, int]:
        """The place of each client."""
        return {client: i for i, client in enumerate(self.tasks)}

    def split(self, member: str) -> tuple[str, str]:
        """The client and the task of a member, 'client' or 'client/task'."""
        client, _, task = member.rpartition("/")
        return (member, "") if member in self.tasks or not client else (client, task)

    def ordered(self, members: Iterable[str]) -> list[str]:
        """Members, 'client' or 'client/task', in the order of the clients and their tasks; unknown ones at the end."""
        places = self.places

        def place(member: str) -> tuple[int, int, str]:
            client, task = self.split(member)
            tasks = self.tasks.get(client, ())
            return places.get(client, len(places)), list(tasks).index(task) if task in tasks else 0, member

        return sorted(members, key=place)

    def rows(self, members: Sequence[str]) -> dict[str, list[int]]:
        """The rows of a matrix: positions of members by name or, if they are many, by kind and task."""
        labels, rows = self.labels, dict[str, list[int]]()
        for i, member in enumerate(members):
            client, task = self.split(member)
            alone = task and len(self.tasks.get(client, ())) == 1
            if len(members) > MOST_ROWS:
                kind = labels.get(client, OTHERS)
                name = f"{kind}, {task}" if task and not alone else kind
            else:
                name = client if alone else member
            rows.setdefault(name, []).append(i)
        return rows


def group_clients(run: RunFiles) -> ClientGroups:
    """The clients of a run: those with scores, then those that only introduced themselves."""
    introduced = {event["client"]: tuple(event["tasks"]) for event in run.of("profile")}
    tasks = {**run.tasks, **{client: held for client, held in introduced.items() if client not in run.tasks}}
    if len(tasks) <= MANY:
        return ClientGroups({client: [client] for client in tasks}, tasks)
    kinds: dict[str, list[str]] = {}
    for client, held in tasks.items():
        kinds.setdefault(client_kind(run.dataset(client), held), []).append(client)
    if len(kinds) > MANY:
        largest = sorted(kinds, key=lambda kind: -len(kinds[kind]))[: MANY - 1]
        rest = [client for kind, clients in kinds.items() if kind not in largest for client in clients]
        kinds = {kind: clients for kind, clients in kinds.items() if kind in largest} | {OTHERS: rest}
    return ClientGroups({kind.replace(":", ": ").replace("+", ", "): clients for kind, clients in kinds.items()}, tasks)


def numbers(values: Any) -> Array:
    """Nested lists as an array, with NaN for None.

    >>> numbers([1, None]).tolist()
    [1.0, nan]
    """
    return np.array(values, dtype=float)


def pooled(matrix: Array, rows: Mapping[str, Sequence[int]], *, itself: bool = False) -> Array:
    """Means of a matrix [..., N, N] over the pairs of two rows, without pairs of a member and itself unless wanted.

    >>> pooled(np.array([[9.0, 1.0, 2.0], [3.0, 9.0, 4.0], [5.0, 7.0, 9.0]]), {"a": [0, 1], "b": [2]}).tolist()
    [[2.0, 3.0], [6.0, nan]]
    """
    whole = numbers(matrix)
    if not itself:
        whole[..., range(whole.shape[-1]), range(whole.shape[-1])] = np.nan
    member = np.zeros((len(rows), whole.shape[-1]))
    for number, positions in enumerate(rows.values()):
        member[number, list(positions)] = 1
    known = ~np.isnan(whole)
    counts = member @ known.astype(float) @ member.T
    sums = member @ np.where(known, whole, 0.0) @ member.T
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def part_of(events: Sequence[Event]) -> str:
    """Says in a title that a run with many members logged some of them.

    >>> part_of([{"members": ["a", "b"], "of": 1000}]), part_of([{"members": ["a", "b"]}])
    (', 2 of 1,000', '')
    """
    return f", {len(events[-1]['members'])} of {events[-1]['of']:,}" if "of" in events[-1] else ""


def by_members(events: Iterable[Event], cast: ClientGroups) -> list[tuple[list[str], list[Event]]]:
    """Group aggregations that have members in common, each with all members it ever had, in the cast's order.

    >>> rounds = [{"members": ["a", "b"]}, {"members": ["x", "y"]}, {"members": ["b", "c"]}]
    >>> [members for members, _ in by_members(rounds, ClientGroups({}, {"c": [], "b": []}))]
    [['c', 'b', 'a'], ['x', 'y']]
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
    ordered = [(cast.ordered(members), held) for members, held in groups]
    return sorted(ordered, key=lambda group: cast.places.get(cast.split(group[0][0])[0], len(cast.tasks)))


def spread(values: Array, present: Sequence[str], members: Sequence[str]) -> Array:
    """Expand a matrix of the members present to all members, [..., N, N], with NaN for absent ones.

    >>> spread(np.ones((1, 1)), ["b"], ["a", "b"]).tolist()
    [[nan, nan], [nan, 1.0]]
    """
    where = {name: i for i, name in enumerate(members)}
    places = [where[name] for name in present]
    whole = np.full((*values.shape[:-2], len(members), len(members)), np.nan)
    whole[..., np.array(places)[:, None], places] = values
    return whole


TOOK_PART, NOT_ASKED, LEFT_OUT = 0, 1, 2
WORDS = ("took part", "not asked", "left out")
AGAIN = " (again)"  # the server's name for a second reply of a client
SHADES = ("#4C8FBD", "#A9AFB8", "#D55E00")
UNKNOWN = "unknown clients"


class LeftOut(NamedTuple):
    """A client whose reply was refused, late or missing in a round, and why; the last number is the evaluation."""

    round: int
    client: str
    why: str


def left_out(run: RunFiles) -> list[LeftOut]:
    """List all clients that were left out, round by round."""
    absences: list[LeftOut] = []
    for event in sorted((*run.of("round"), *run.of("failed"), *run.of("absent")), key=lambda each: each["round"]):
        match event["event"]:
            case "round":
                absences += [LeftOut(event["round"] + 1, client, why) for client, why in event["refused"].items()]
            case "absent":
                absences += [LeftOut(event["round"] + 1, client, why) for client, why in event["clients"].items()]
            case "failed":
                absences.append(LeftOut(event["round"] + 1, event["client"], event["why"]))
    return absences


def attendance_figures(run: RunFiles) -> list[Figure]:
    """Draw clients by rounds, or the share of each kind that took part, if not all took part in every round."""
    rounds = [event["round"] + 1 for event in run.of("round")]
    why = {(one.round, one.client): one.why for one in left_out(run)}
    there = {(event["round"] + 1, event["client"]) for event in run.of("client")}
    cast = group_clients(run)
    strangers = {client for _, client in why if not client.endswith(AGAIN)} - set(cast.tasks)
    clients = [*cast.tasks, *sorted(strangers)]

    def state(round: int, client: str) -> int:
        return LEFT_OUT if (round, client) in why else TOOK_PART if (round, client) in there else NOT_ASKED

    states = [[state(round, client) for round in rounds] for client in clients]
    if not any(any(row) for row in states):
        return []
    if len(clients) > MOST_ROWS:
        return [_shares(cast, clients, rounds, states)]
    told = [
        [why.get((round, client), WORDS[now]) for round, now in zip(rounds, row, strict=True)]
        for client, row in zip(clients, states, strict=True)
    ]
    count = len(WORDS)
    scale = [[(step + more) / count, SHADES[step]] for step in range(count) for more in (0, 1)]
    trace = matrix(states, clients, rounds, zmin=-0.5, zmax=count - 0.5, text=told)
    trace |= {"hovertemplate": "round %{x}, %{y}: %{text}<extra></extra>", "texttemplate": ""}
    trace |= {"autocolorscale": False, "colorscale": scale}
    trace["colorbar"] = {"thickness": 12, "tickvals": list(range(count)), "ticktext": WORDS}
    note = "A client was left out if it failed, was late or away, or if the server refused its reply: see the table."
    return [Figure("attendance", "Who took part", note, [trace], _layout(len(clients), rounds), wide=True)]


def _layout(rows: int, rounds: list[int]) -> dict[str, Any]:
    steps = {"tick0": rounds[0], "dtick": max(1, ceil(len(rounds) / 8))}
    return matrix_layout(rows, xaxis={"title": {"text": "round"}, "automargin": True, "showgrid": False, **steps})


def _shares(cast: ClientGroups, clients: list[str], rounds: list[int], states: list[list[int]]) -> Figure:
    """Draw the share of each kind that took part."""
    labels, rows = cast.labels, dict[str, list[list[int]]]()
    for client, row in zip(clients, states, strict=True):
        rows.setdefault(labels.get(client, UNKNOWN), []).append(row)
    shares = [
        [sum(now == TOOK_PART for now in column) / len(held) for column in zip(*held, strict=True)]
        for held in rows.values()
    ]
    trace = matrix(shares, list(rows), rounds, zmin=0, zmax=1)
    note = f"Share of the clients of a kind that took part in a round, of {len(clients):,} clients."
    return Figure("attendance", "Who took part", note, [trace], _layout(len(rows), rounds), wide=True)
