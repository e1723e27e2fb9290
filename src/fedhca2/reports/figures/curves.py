"""Curves over rounds: scores, losses, learned weights, seconds and bytes of clients, or of their kinds."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from fedhca2.reports.figures import (
    GREY,
    Figure,
    Slider,
    Trace,
    axes,
    fitted,
    line,
    matrix,
    matrix_layout,
    round_axes,
    thinned,
    values_of,
)
from fedhca2.reports.figures.groups import ClientGroups, group_clients, numbers
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.words import metric_axis, metric_title

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
    cast: ClientGroups,
    federated: Mapping[str, Series],
    rounds: Sequence[int],
    alone: Mapping[str, Series] | None = None,
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
    figures, cast = [], group_clients(run)
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


def reading(cast: ClientGroups, alone: object = None) -> str:
    """How to read lines and bands."""
    dotted = ["Dotted: training alone."] if alone else []
    band = ["Lines are medians of the clients of a kind, bands hold the middle 80 % of them."] if cast.by_kind else []
    return " ".join(dotted + band)


def loss_curves(run: RunFiles) -> list[Figure]:
    """Draw one figure per task: the mean training loss of its clients, and of the same clients alone."""
    figures, cast = [], group_clients(run)
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


NUMBERED = 20  # most rows with numbers in them


def weight_figures(run: RunFiles) -> list[Figure]:
    """Draw α over rounds, β over rounds, and β by decoder and layer, if the method learns weights."""
    events = [event for event in run.of("weights") if event["weights"]]
    if not events:
        return []
    cast = group_clients(run)
    weights: dict[str, dict[str, Series]] = {}  # by slot and client
    for event in events:
        for key, values in event["weights"].items():
            client, _, slot = key.rpartition("/")
            weights.setdefault(slot, {}).setdefault(client, {})[event["round"] + 1] = float(np.mean(numbers(values)))
    figures = []
    for slot in ("encoder", *(f"decoder.{task}" for task in tasks_of(run))):
        if (held := weights.get(slot)) is None:
            continue
        traces = lines(cast, held, range(1, run.rounds + 1))
        part, _, task = slot.partition(".")
        symbol = "α" if part == "encoder" else "β"
        title = f"{symbol} over rounds" + (f", {run.task_set[task].title}" if task else "")
        note = "How much of the common encoder update each client adds to its own."
        note = note if symbol == "α" else "How much of the others' decoder updates it adds, mean over layers."
        note += extremes(symbol, [series[max(series)] for series in held.values()])
        layout = round_axes(run.rounds, symbol, fitted(values_of(traces)))
        id = "alpha" if part == "encoder" else f"beta-{task}"
        figures.append(Figure(id, title, f"{note} {reading(cast)}".strip(), traces, layout))
    return [*figures, *_layers(run, cast, events)]


def _layers(run: RunFiles, cast: ClientGroups, events: list[Event]) -> list[Figure]:
    """Draw β of every decoder and layer, with a slider over rounds."""
    keys = {"/".join(key.rsplit("/decoder.", 1)): key for key in events[-1]["weights"] if "/decoder." in key}
    if not keys:
        return []
    members = cast.ordered(keys)
    rows, layers = cast.rows(members), decoder_layers(run, members[0], len(events[-1]["weights"][keys[members[0]]]))
    shown = [events[i] for i in thinned(len(events), len(rows) * len(layers))]

    def state(event: Event) -> list[list[float]]:
        held = [event["weights"].get(keys[member], ()) for member in members]
        known = np.stack([numbers(v if len(v) == len(layers) else [None] * len(layers)) for v in held])
        with np.errstate(invalid="ignore"):
            return [known[places].mean(axis=0).tolist() for places in rows.values()]

    states = [state(event) for event in shown]
    low, high = fitted([value for held in states for row in held for value in row]) or (0.0, 1.0)
    limits = {"zmin": max(low, 0.0), "zmax": high}
    written = {"texttemplate": "%{z:.3f}"} if len(rows) <= NUMBERED else {}
    trace = matrix(states[-1], list(rows), layers, **limits, **written)
    slider = Slider("round", [str(event["round"] + 1) for event in shown], len(shown) - 1)
    note = "How much of the other decoders' updates each layer adds. The colours span all values of the run."
    note += extremes("β", [value for row in states[-1] for value in row])
    changes = [{"z": [held]} for held in states]
    layout = matrix_layout(len(rows))
    return [Figure("beta-layers", "β by decoder and layer", note, [trace], layout, True, [slider], changes)]


def decoder_tensors(run: RunFiles, member: str) -> list[str]:
    """Names of the tensors in the row of the decoder 'client/task'."""
    client, _, task = member.rpartition("/")
    for event in run.of("profile"):
        if event["client"] == client:
            return list(event["decoders"].get(task, ()))
    return []


def decoder_layers(run: RunFiles, member: str, count: int) -> list[str]:
    """The layers of the decoder 'client/task' that have a weight, as L1, L2, … in the paper, with names if known."""
    names = dict.fromkeys(name.rpartition(".")[0] for name in decoder_tensors(run, member))
    found = list(names) if len(names) == count else ["layer"] * count
    return [f"L{number} {name}" for number, name in enumerate(found, start=1)]


def extremes(symbol: str, last: Sequence[float]) -> str:
    """Say when all weights of the last round are 0 or 1, where learning them has ended; otherwise nothing.

    >>> extremes("α", [0.0, 0.004])
    ' All α are 0 in the last round: nobody takes anything from the others.'
    >>> extremes("β", [1.0, 1.0]), extremes("α", [0.1, 1.0])
    (' All β are 1 in the last round, the upper bound: they are no longer learned.', '')
    """
    if all(value < 0.005 for value in last):
        return f" All {symbol} are 0 in the last round: nobody takes anything from the others."
    if all(value > 0.995 for value in last):
        return f" All {symbol} are 1 in the last round, the upper bound: they are no longer learned."
    return ""


MEBIBYTE = 2**20


def cost_figures(run: RunFiles) -> list[Figure]:
    """Draw seconds of each client and of the whole round, and bytes up and down, by round and in total."""
    events, cast = run.of("client"), group_clients(run)
    if not events:
        return []
    seconds: dict[str, Series] = {}
    moved: dict[str, Series] = {}
    for event in events:
        seconds.setdefault(event["client"], {})[event["round"] + 1] = event["seconds"]
        both = (event["bytes_up"] + event["bytes_down"]) / MEBIBYTE
        moved.setdefault(event["client"], {})[event["round"] + 1] = both
    rounds = range(1, run.rounds + 2)
    whole = {event["round"] + 1: event["seconds"] for event in run.of("round")}
    thick: Trace = {"line": {"color": GREY, "dash": "dot", "width": 3}, "mode": "lines"}
    times = [*lines(cast, seconds, rounds), *drawn("whole round", GREY, [whole], rounds, **thick)]
    note = "Each client's own work and, dotted, the whole round. The last round only evaluates."
    return [
        Figure(
            "seconds", "Seconds by round", f"{note} {reading(cast)}".strip(), times, round_axes(run.rounds + 1, "s")
        ),
        Figure(
            "bytes",
            "Bytes by round",
            f"Sent to and from each client; a gap is a round without it. {reading(cast)}".strip(),
            lines(cast, moved, rounds),
            round_axes(run.rounds + 1, "MiB"),
        ),
        _totals(cast, events),
    ]


def _totals(cast: ClientGroups, events: Sequence[Event]) -> Figure:
    sums: dict[str, list[float]] = {client: [0.0, 0.0] for clients in cast.groups.values() for client in clients}
    for event in events:
        held = sums.setdefault(event["client"], [0.0, 0.0])
        held[0] += event["bytes_up"] / MEBIBYTE
        held[1] += event["bytes_down"] / MEBIBYTE
    bars = []
    for number, (way, shade) in enumerate((("up", 1.0), ("down", 0.55))):
        means = [sum(sums[client][number] for client in held) / len(held) for held in cast.groups.values()]
        marker = {"color": list(cast.colours.values()), "opacity": shade}
        hover = {"hovertemplate": f"%{{x}}: %{{y:.4g}} MiB {way}<extra></extra>"}
        bars.append({"type": "bar", "name": way, "x": list(cast.groups), "y": means, "marker": marker, **hover})
    layout = axes("", "MiB", barmode="group")
    layout["xaxis"] |= {"type": "category"}
    each = "Mean of the clients of a kind, in all rounds" if cast.by_kind else "All rounds"
    return Figure("bytes-total", "Bytes in total", f"{each}: up (left) and down (right, paler).", bars, layout)
