"""The clients of a run: their labels, order and colours in every figure, and who took part in which round."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Any

import numpy as np

from fedhca2.experiment.clients import client_kind
from fedhca2.reports.figures import COLOURS, GREY, Figure, Trace, heat_map, thin
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles

MAX_ROWS = 60  # of a matrix: more members than this are drawn by kind
OTHERS = "other groups"
ATTENDANCE = {"took part": "#4C8FBD", "not asked": "#A9AFB8", "excluded": "#D55E00"}  # with their colours


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
        return {label: GREY if label == OTHERS else COLOURS[i % len(COLOURS)] for i, label in enumerate(self.groups)}

    @property
    def labels(self) -> dict[str, str]:
        """The label of each client."""
        return {client: label for label, clients in self.groups.items() for client in clients}

    @property
    def client_colours(self) -> dict[str, str]:
        """The colour of each client."""
        colours = self.colours
        return {client: colours[label] for client, label in self.labels.items()}

    def split(self, member: str) -> tuple[str, str]:
        """The client and the task of a member, 'client' or 'client/task'."""
        client, _, task = member.rpartition("/")
        return (member, "") if member in self.tasks or not client else (client, task)

    def sort(self, members: Iterable[str]) -> list[str]:
        """Members, 'client' or 'client/task', in the order of the clients and their tasks, unknown ones at the end."""
        names = [name for client, own in self.tasks.items() for name in (client, *(f"{client}/{task}" for task in own))]
        rank = {name: i for i, name in enumerate(names)}
        return sorted(members, key=lambda member: (rank.get(member, len(rank)), member))

    def rows(self, members: Sequence[str]) -> dict[str, list[int]]:
        """The rows of a matrix: positions of members by name or, if they are many, by kind and task."""
        labels, rows = self.labels, dict[str, list[int]]()
        for i, member in enumerate(members):
            client, task = self.split(member)
            only_task = task and len(self.tasks.get(client, ())) == 1
            if len(members) > MAX_ROWS:
                kind = labels.get(client, OTHERS)
                name = f"{kind}, {task}" if task and not only_task else kind
            else:
                name = client if only_task else member
            rows.setdefault(name, []).append(i)
        return rows


def group_clients(run: RunFiles) -> ClientGroups:
    """The clients of a run: those with scores, then those that only introduced themselves."""
    introduced = {event["client"]: tuple(event["tasks"]) for event in run.of("profile")}
    tasks = run.tasks | {client: own for client, own in introduced.items() if client not in run.tasks}
    most = len(COLOURS)
    if len(tasks) <= most:
        return ClientGroups({client: [client] for client in tasks}, tasks)
    kinds: dict[str, list[str]] = {}
    for client, own in tasks.items():
        kinds.setdefault(client_kind(run.dataset(client), own), []).append(client)
    if len(kinds) > most:
        largest = sorted(kinds, key=lambda kind: -len(kinds[kind]))[: most - 1]
        rest = [client for kind, clients in kinds.items() if kind not in largest for client in clients]
        kinds = {kind: clients for kind, clients in kinds.items() if kind in largest} | {OTHERS: rest}
    return ClientGroups({kind.replace(":", ": ").replace("+", ", "): clients for kind, clients in kinds.items()}, tasks)


@dataclass(frozen=True)
class MemberEvents:
    """Aggregations that have members in common, with all members they ever had, and the rows of their matrices."""

    mark: str  # of their figures' ids: empty for the first such group, then -1, -2, …
    members: list[str]
    rows: Mapping[str, list[int]]
    events: list[Event]

    @property
    def part(self) -> str:
        """Says in a title that a run with many members logged some of them.

        >>> MemberEvents("", [], {}, [{"members": ["a", "b"], "of": 1000}]).part
        ', 2 of 1,000'
        """
        last = self.events[-1]
        return f", {len(last['members'])} of {last['of']:,}" if "of" in last else ""

    def thin_out(self, numbers: int) -> "MemberEvents":
        """Some of the events, evenly spread, if each has so many numbers."""
        return replace(self, events=[self.events[i] for i in thin(len(self.events), numbers)])

    @property
    def rounds(self) -> list[int]:
        """The rounds of the events."""
        return [event["round"] + 1 for event in self.events]

    def matrices(self, values: Callable[[Event], Any], *, pooled: bool = False) -> list[Array]:
        """A matrix of all members for each event, or of their rows, from one [..., N, N] of those present.

        >>> MemberEvents("", ["a", "b"], {}, [{"members": ["b"]}]).matrices(lambda event: [[1]])[0].tolist()
        [[nan, nan], [nan, 1.0]]
        """
        matrices, count, position = [], len(self.members), {name: i for i, name in enumerate(self.members)}
        for event in self.events:
            present, at = np.array(values(event), dtype=float), [position[name] for name in event["members"]]
            whole = np.full((*present.shape[:-2], count, count), np.nan)
            whole[..., np.array(at)[:, None], at] = present
            matrices.append(pool(whole, self.rows, itself=True) if pooled else whole)
        return matrices


def by_members(events: Iterable[Event], groups: ClientGroups) -> list[MemberEvents]:
    """Group aggregations that have members in common, in the order of their clients.

    >>> rounds = [{"members": ["a", "b"]}, {"members": ["x", "y"]}, {"members": ["b", "c"]}]
    >>> [each.members for each in by_members(rounds, ClientGroups({}, {"c": [], "b": []}))]
    [['c', 'b', 'a'], ['x', 'y']]
    """
    sets: list[tuple[set[str], list[Event]]] = []
    for event in events:
        members, own = next((one for one in sets if one[0] & set(event["members"])), (set[str](), list[Event]()))
        if not own:
            sets.append((members, own))
        members.update(event["members"])
        own.append(event)
    everyone = groups.sort(member for members, _ in sets for member in members)
    groups_of_events = []
    for number, (members, own) in enumerate(sorted(sets, key=lambda one: min(map(everyone.index, one[0])))):
        ordered = [member for member in everyone if member in members]
        groups_of_events.append(MemberEvents(f"-{number}" if number else "", ordered, groups.rows(ordered), own))
    return groups_of_events


def pool(matrix: Array, rows: Mapping[str, Sequence[int]], *, itself: bool = False) -> Array:
    """Means of a matrix [..., N, N] over the pairs of two rows, without pairs of a member and itself unless `itself`.

    >>> pool(np.array([[9.0, 1.0, 2.0], [3.0, 9.0, 4.0], [5.0, 7.0, 9.0]]), {"a": [0, 1], "b": [2]}).tolist()
    [[2.0, 3.0], [6.0, nan]]
    """
    whole = np.array(matrix, dtype=float)
    if not itself:
        whole[..., range(whole.shape[-1]), range(whole.shape[-1])] = np.nan
    member = np.zeros((len(rows), whole.shape[-1]))
    for number, positions in enumerate(rows.values()):
        member[number, list(positions)] = 1
    present = ~np.isnan(whole)
    counts = member @ present.astype(float) @ member.T
    sums = member @ np.where(present, whole, 0.0) @ member.T
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)


def mean_of(matrices: Sequence[Array]) -> Array:
    """The mean of the numbers at each position; NaN where there are none."""
    return np.asarray(np.ma.masked_invalid(matrices).mean(axis=0).filled(np.nan))


def list_exclusions(run: RunFiles) -> list[tuple[str, str, int]]:
    """Each reply that was refused, late or missing: its client, why, and its round; the last one is the evaluation."""
    exclusions: list[tuple[str, str, int]] = []
    for event in sorted((*run.of("round"), *run.of("failed"), *run.of("absent")), key=lambda each: each["round"]):
        key = {"round": "refused", "absent": "clients"}.get(event["event"])
        reasons = event[key] if key else {event["client"]: event["why"]}
        exclusions += [(client, why, event["round"] + 1) for client, why in reasons.items()]
    return exclusions


def attendance_figures(run: RunFiles) -> list[Figure]:
    """Draw clients by rounds, or the share of each kind that took part, if not all took part in every round."""
    rounds, groups = [event["round"] + 1 for event in run.of("round")], group_clients(run)
    why = {(round, client): reason for client, reason, round in list_exclusions(run)}
    attended = {(event["round"] + 1, event["client"]) for event in run.of("client")}
    strangers = {client for _, client in why if not client.endswith(" (again)")} - set(groups.tasks)  # a second reply
    clients = [*groups.tasks, *sorted(strangers)]
    cells = [[(round, client) for round in rounds] for client in clients]
    states = np.array([[2 if cell in why else 0 if cell in attended else 1 for cell in row] for row in cells])
    if not states.any():
        return []
    ticks = {"tick0": rounds[0], "dtick": max(1, ceil(len(rounds) / 8))}
    layout = {"xaxis": {"title": {"text": "round"}, "automargin": True, "showgrid": False, **ticks}}
    about, words = ("attendance", "Who took part"), list(ATTENDANCE)  # a state is a position in these
    if len(clients) > MAX_ROWS:
        labels = groups.labels
        kind_of = [labels.get(client, "unknown clients") for client in clients]
        kinds = list(dict.fromkeys(kind_of))
        shares = [(states[[own == kind for own in kind_of]] == 0).mean(axis=0) for kind in kinds]
        note = f"Share of each group's clients that took part, of {len(states):,} clients."
        return [heat_map(*about, note, [shares], kinds, rounds, layout=layout, zmin=0, zmax=1)]
    count, pairs = len(words), [zip(*row, strict=True) for row in zip(cells, states, strict=True)]
    look: Trace = {"text": [[why.get(cell, words[state]) for cell, state in row] for row in pairs], "texttemplate": ""}
    look |= {"hovertemplate": "round %{x}, %{y}: %{text}<extra></extra>", "zmin": -0.5, "zmax": count - 0.5}
    steps = [[(i + end) / count, ATTENDANCE[word]] for i, word in enumerate(words) for end in (0, 1)]
    look |= {"autocolorscale": False, "colorscale": steps}
    look |= {"colorbar": {"thickness": 12, "tickvals": list(range(count)), "ticktext": words}}
    note = "Excluded: failed, late, absent or rejected. Reasons below."
    return [heat_map(*about, note, [states], clients, rounds, layout=layout, **look)]
