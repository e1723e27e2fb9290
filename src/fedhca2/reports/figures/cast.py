"""Who is drawn, in which order and colour: the same in every figure of a run."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhca2.experiment.clients import client_kind
from fedhca2.reports.figures.figure import COLOURS, GREY
from fedhca2.run_folder.reader import Array, RunFiles

MANY = len(COLOURS)  # more clients than this are drawn by kind
MOST_ROWS = 60  # of a matrix: more members than this are drawn by kind
OTHERS = "other kinds"


@dataclass(frozen=True)
class Cast:
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


def cast_of(run: RunFiles) -> Cast:
    """The clients of a run: those with scores, then those that only introduced themselves."""
    introduced = {event["client"]: tuple(event["tasks"]) for event in run.of("profile")}
    tasks = {**run.tasks, **{client: held for client, held in introduced.items() if client not in run.tasks}}
    if len(tasks) <= MANY:
        return Cast({client: [client] for client in tasks}, tasks)
    kinds: dict[str, list[str]] = {}
    for client, held in tasks.items():
        kinds.setdefault(client_kind(run.dataset(client), held), []).append(client)
    if len(kinds) > MANY:
        largest = sorted(kinds, key=lambda kind: -len(kinds[kind]))[: MANY - 1]
        rest = [client for kind, clients in kinds.items() if kind not in largest for client in clients]
        kinds = {kind: clients for kind, clients in kinds.items() if kind in largest} | {OTHERS: rest}
    return Cast({kind.replace(":", ": ").replace("+", ", "): clients for kind, clients in kinds.items()}, tasks)


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
