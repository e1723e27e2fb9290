"""Curves over rounds: scores and losses of every client, or of the clients of a kind."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedhca2.reports.figures.cast import Cast, cast_of
from fedhca2.reports.figures.figure import Figure, Trace, fitted, line, round_axes, values_of
from fedhca2.reports.names import metric_axis, metric_title
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.run_folder.result import headline

Series = dict[int, float]  # values by round


def series(events: Iterable[Event], task: str, metric: str) -> dict[str, Series]:
    """Every client's values of one metric by round; the last value counts if a round was repeated."""
    values: dict[str, Series] = {}
    for event in events:
        if event["task"] == task and event["metric"] == metric:
            values.setdefault(event["client"], {})[event["round"]] = event["value"]
    return values


def drawn(
    label: str, colour: str, held: Sequence[Series], rounds: Sequence[int], *, band: str = "quantiles", **more: Any
) -> list[Trace]:
    """Draw one series as a line, or several as a line in a band; rounds without a value are gaps.

    The band has the middle 80 % and the line their median; of `seeds` it has all and the line their mean; '' has none.
    """
    values: Array = np.array([[one.get(round, np.nan) for round in rounds] for one in held], dtype=float)
    if np.isnan(values).all():
        return []
    there: Array = np.asarray(~np.isnan(values).all(axis=0))
    middle = np.full(len(rounds), np.nan)
    middle[there] = (np.nanmean if band == "seeds" else np.nanmedian)(values[:, there], axis=0)
    traces = [line(label, colour, rounds, middle.tolist(), **more)]
    if len(held) == 1 or not band:
        return traces
    low, high = np.nanquantile(values[:, there], (0, 1) if band == "seeds" else (0.1, 0.9), axis=0)
    x = [round for round, here in zip(rounds, there, strict=True) if here]
    edge = {"mode": "lines", "line": {"width": 0, "color": colour}, "hoverinfo": "skip", "hovertemplate": None}
    lower = line(label, colour, x, low.tolist(), **edge)
    upper = line(label, colour, x, high.tolist(), **edge, fill="tonexty", fillcolor=f"{colour}30")
    return [lower, upper, *traces]


def lines(
    cast: Cast, federated: Mapping[str, Series], rounds: Sequence[int], alone: Mapping[str, Series] | None = None
) -> list[Trace]:
    """Draw the clients of each label in its colour, and dotted what they reach alone."""
    traces = []
    for label, colour in cast.colours.items():
        clients = cast.groups[label]
        traces += drawn(label, colour, [federated[client] for client in clients if client in federated], rounds)
        local = [alone[client] for client in clients if client in alone] if alone else []
        when = sorted({round for one in local for round in one})
        dotted = {"color": colour, "dash": "dot", "width": 1.5}
        traces += drawn(label, colour, local, when, band="", name=f"{label}, alone", line=dotted, mode="lines")
    return traces


def tasks_of(run: RunFiles) -> list[str]:
    """All tasks of the federation."""
    return list(dict.fromkeys(task for tasks in run.tasks.values() for task in tasks))


def headline_name(run: RunFiles, task: str) -> tuple[str, bool] | None:
    """The task's main metric and whether higher is better, if the run has measured it."""
    scores = {e["metric"]: e["value"] for e in run.of("metric") if e["task"] == task}
    if not scores:
        return None
    main = headline(run.task_set[task], scores)
    return main.metric, main.higher_is_better


def metric_curves(run: RunFiles) -> list[Figure]:
    """Draw one figure per task: the main metric of its clients, and what they reach alone, if it has several rounds."""
    figures, cast = [], cast_of(run)
    for task in tasks_of(run):
        if (main := headline_name(run, task)) is None:
            continue
        metric, higher = main
        both = (run.of("metric"), run.baseline_events("metric"))
        federated, alone = (series(events, task, metric) for events in both)
        rounds = sorted({round for one in federated.values() for round in one})
        if len(rounds) < 2:
            continue
        traces = lines(cast, federated, rounds, alone)
        better = "higher" if higher else "lower"
        layout = round_axes(
            run.rounds, f"{metric_axis(run.task_set[task].unit, metric)}, {better} is better", fitted(values_of(traces))
        )
        note = f"{metric_title(metric)} on each client's validation images. {reading(cast, alone)}"
        note += catching_up([rounds_to_match(federated[c], alone[c], higher) for c in federated if c in alone])
        figures.append(Figure(f"metric-{task}", run.task_set[task].title, note.strip(), traces, layout))
    return figures


def rounds_to_match(ours: Series, alone: Series, higher: bool) -> int | None:
    """The first round whose score is as good as the last one of training alone; None if there is none.

    >>> rounds_to_match({1: 3.0, 2: 5.0, 3: 6.0}, {1: 2.0, 3: 5.0}, higher=True)
    2
    >>> rounds_to_match({1: 3.0, 2: 5.0}, {2: 2.0}, higher=False)
    """
    goal = alone[max(alone)]
    reached = [round for round, value in ours.items() if (value >= goal if higher else value <= goal)]
    return min(reached, default=None)


def catching_up(rounds: Sequence[int | None]) -> str:
    """Say how many rounds clients needed to match the final score of training alone.

    >>> catching_up([3, 5, None])
    ' 2 of 3 clients match the final score of training alone, in 4 rounds (median).'
    >>> catching_up([]), catching_up([None])
    ('', ' No client matches the final score of training alone.')
    """
    matched = [round for round in rounds if round is not None]
    if not rounds:
        return ""
    if not matched:
        return " No client matches the final score of training alone."
    return (
        f" {len(matched)} of {len(rounds)} clients match the final score of training alone, in "
        f"{np.median(matched):g} rounds (median)."
    )


def reading(cast: Cast, alone: object = None) -> str:
    """How to read lines and bands."""
    dotted = ["Dotted: training alone."] if alone else []
    band = ["Lines are medians of the clients of a kind, bands hold the middle 80 % of them."] if cast.by_kind else []
    return " ".join(dotted + band)


def loss_curves(run: RunFiles) -> list[Figure]:
    """Draw one figure per task: the mean training loss of its clients, and of the same clients alone."""
    figures, cast = [], cast_of(run)
    for task in tasks_of(run):
        federated, alone = (
            {client: {round + 1: value for round, value in one.items()} for client, one in held.items()}
            for held in (series(events, task, "loss") for events in (run.of("loss"), run.baseline_events("loss")))
        )
        traces = lines(cast, federated, range(1, run.rounds + 1), alone)
        note = f"Mean training loss in the last epoch of each round. {reading(cast, alone)}"
        layout = round_axes(run.rounds, "loss")
        figures.append(Figure(f"loss-{task}", f"{run.task_set[task].title}, loss", note.strip(), traces, layout))
    return [figure for figure in figures if figure.data]
