"""Which clients took part in which round, and which were left out."""

from math import ceil
from typing import Any, NamedTuple

from fedhca2.reports.figures.cast import MOST_ROWS, Cast, cast_of
from fedhca2.reports.figures.figure import Figure, matrix, matrix_layout
from fedhca2.run_folder.reader import RunFiles

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
    cast = cast_of(run)
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


def _shares(cast: Cast, clients: list[str], rounds: list[int], states: list[list[int]]) -> Figure:
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
