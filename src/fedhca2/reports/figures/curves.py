"""Curves over rounds: scores, losses, learned weights, seconds and bytes of clients, or of their groups."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedhca2.reports.figures import GREY, Figure, Slider, Trace, axes, fit_range, heat_map, line, round_axes, thin
from fedhca2.reports.figures.groups import group_clients
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import Array, RunFiles
from fedhca2.run_folder.result import Headline, headline
from fedhca2.words import metric_title

Series = dict[int, float]  # values by round


def series(events: Iterable[Event], value: Callable[[Event], float], first: int = 1) -> dict[str, Series]:
    """Every client's values by round, where the first round has this number; of a repeated round the last counts."""
    values: dict[str, Series] = {}
    for event in events:
        values.setdefault(event["client"], {})[event["round"] + first] = value(event)
    return values


def task_series(events: Iterable[Event], task: str, metric: str) -> dict[str, Series]:
    """Every client's values of a metric by the number of rounds before them, or of a `loss` by round."""
    own = (event for event in events if event["task"] == task and event["metric"] == metric)
    return series(own, lambda event: float(event["value"]), first=int(metric == "loss"))


def draw_series(
    label: str, colour: str, several: Sequence[Series], rounds: Sequence[int], *, band: str = "quantiles", **more: Any
) -> list[Trace]:
    """Draw one series as a line, or several as a line in a band; rounds without a value are gaps.

    The band has the middle 80 % and the line their median; of `seeds` it has all and the line their mean; '' has none.
    """
    values: Array = np.array([[one.get(round, np.nan) for round in rounds] for one in several], dtype=float)
    if np.isnan(values).all():
        return []
    has_value: Array = np.asarray(~np.isnan(values).all(axis=0))
    middle = np.full(len(rounds), np.nan)
    middle[has_value] = (np.nanmean if band == "seeds" else np.nanmedian)(values[:, has_value], axis=0)
    traces = [line(label, colour, rounds, middle.tolist(), **more)]
    if len(several) == 1 or not band:
        return traces
    low, high = np.nanquantile(values[:, has_value], (0, 1) if band == "seeds" else (0.1, 0.9), axis=0)
    x = [round for round, has_some in zip(rounds, has_value, strict=True) if has_some]
    edge = {"mode": "lines", "line": {"width": 0, "color": colour}, "hoverinfo": "skip", "hovertemplate": None}
    lower = line(label, colour, x, low.tolist(), **edge)
    upper = line(label, colour, x, high.tolist(), **edge, fill="tonexty", fillcolor=f"{colour}30")
    return [lower, upper, *traces]


def all_tasks(run: RunFiles) -> list[str]:
    """All tasks of the federation."""
    return list(dict.fromkeys(task for tasks in run.tasks.values() for task in tasks))


def last_score(run: RunFiles, task: str) -> Headline | None:
    """The last score in a task's main metric, if the run has measured it."""
    scores = {event["metric"]: event["value"] for event in run.of("metric") if event["task"] == task}
    return headline(run.task_set[task], scores) if scores else None


def score_axis(score: Headline) -> str:
    """The name of a main metric, its unit, and its better direction."""
    name = f"{metric_title(score.metric)} ({score.unit})" if score.unit else metric_title(score.metric)
    return f"{name}, {'higher' if score.higher_is_better else 'lower'} is better"


def client_figure(
    run: RunFiles,
    about: tuple[str, str, str],
    values: Mapping[str, Series],
    rounds: Sequence[int],
    y: str,
    alone: Mapping[str, Series] | None = None,
    *,
    fit: bool = False,
) -> Figure:
    """Draw the clients of each label in its colour, and dotted what they reach alone.

    :param about: the figure's id, title and note.
    :param y: the title of the y axis, which starts at 0 unless it should `fit` the values.
    """
    id, title, note = about
    traces, groups = [], group_clients(run)
    for label, colour in groups.colours.items():
        clients = groups.groups[label]
        traces += draw_series(label, colour, [values[client] for client in clients if client in values], rounds)
        local = [alone[client] for client in clients if client in alone] if alone else []
        when = sorted({round for one in local for round in one})
        dotted = {"color": colour, "dash": "dot", "width": 1.5}
        traces += draw_series(label, colour, local, when, band="", name=f"{label}, local", line=dotted, mode="lines")
    note += " Dotted: local training." * bool(alone)
    note += " Median per group; band: 10th to 90th percentile." * groups.by_kind
    return Figure(id, title, note, traces, round_axes(max(run.rounds, *rounds), y, traces if fit else None))


def metric_curves(run: RunFiles) -> list[Figure]:
    """Draw one figure per task: the main metric of its clients, and what they reach alone, if it has several rounds."""
    figures = []
    for task in all_tasks(run):
        if (main := last_score(run, task)) is None:
            continue
        both = (run.of("metric"), run.baseline_events("metric"))
        federated, alone = (task_series(events, task, main.metric) for events in both)
        rounds = sorted({round for one in federated.values() for round in one})
        if len(rounds) < 2:
            continue
        note = f"{metric_title(main.metric)} on each client's validation images."
        about, title = (f"metric-{task}", run.task_set[task].title, note), score_axis(main)
        figure = client_figure(run, about, federated, rounds, title, alone, fit=True)
        needed = [rounds_to_match(federated[c], alone[c], main.higher_is_better) for c in federated if c in alone]
        figures.append(replace(figure, note=figure.note + describe_catching_up(needed)))
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


def describe_catching_up(rounds: Sequence[int | None]) -> str:
    """Say how many rounds clients needed to match the final score of training alone.

    >>> describe_catching_up([3, 5, None])
    ' 2 of 3 clients reach the final local score, by round 4 (median).'
    >>> describe_catching_up([]), describe_catching_up([None])
    ('', ' No client reaches the final local score.')
    """
    matched = [round for round in rounds if round is not None]
    if not rounds:
        return ""
    if not matched:
        return " No client reaches the final local score."
    share, median = f"{len(matched)} of {len(rounds)}", np.median(matched)
    return f" {share} clients reach the final local score, by round {median:g} (median)."


def loss_curves(run: RunFiles) -> list[Figure]:
    """Draw one figure per task: the mean training loss of its clients, and of the same clients alone."""
    figures = []
    for task in all_tasks(run):
        both = (run.of("loss"), run.baseline_events("loss"))
        federated, alone = (task_series(events, task, "loss") for events in both)
        note = "Mean training loss in the last epoch of each round."
        about = (f"loss-{task}", f"{run.task_set[task].title}, loss", note)
        figures.append(client_figure(run, about, federated, range(1, run.rounds + 1), "loss", alone))
    return [figure for figure in figures if figure.data]


def weight_figures(run: RunFiles) -> list[Figure]:
    """Draw α over rounds, β over rounds, and β by decoder and layer, if the method learns weights."""
    events = [event for event in run.of("weights") if event["weights"]]
    if not events:
        return []
    weights: dict[str, dict[str, Series]] = {}  # by slot and client
    for event in events:
        for key, values in event["weights"].items():
            client, _, slot = key.rpartition("/")
            mean = float(np.mean(np.array(values, dtype=float)))
            weights.setdefault(slot, {}).setdefault(client, {})[event["round"] + 1] = mean
    figure_of_slot = {"encoder": ("alpha", "α over rounds", "Weight α of the common encoder update.")}
    note = "Weight β of other decoders, mean over layers."
    for task in all_tasks(run):
        figure_of_slot[f"decoder.{task}"] = (f"beta-{task}", f"β over rounds, {run.task_set[task].title}", note)
    figures = []
    for slot, (id, title, note) in figure_of_slot.items():
        if (own := weights.get(slot)) is not None:
            symbol, last = title[0], [one[max(one)] for one in own.values()]
            about = (id, title, note + describe_bounds(symbol, last))
            figures.append(client_figure(run, about, own, range(1, run.rounds + 1), symbol, fit=True))
    return [*figures, *_layers(run, events)]


def _layers(run: RunFiles, events: list[Event]) -> list[Figure]:
    """Draw β of every decoder and layer, with a slider over rounds."""
    groups = group_clients(run)
    keys = {"/".join(key.rsplit("/decoder.", 1)): key for key in events[-1]["weights"] if "/decoder." in key}
    if not keys:
        return []
    members = groups.sort(keys)
    rows, count = groups.rows(members), len(events[-1]["weights"][keys[members[0]]])
    names = list(dict.fromkeys(name.rpartition(".")[0] for name in decoder_tensors(run, members[0])))
    layers = [f"L{i + 1} {names[i] if len(names) == count else 'layer'}" for i in range(count)]  # as in the paper
    shown = [events[i] for i in thin(len(events), len(rows) * len(layers))]

    def state(event: Event) -> list[list[float]]:
        own = [event["weights"].get(keys[member], ()) for member in members]
        weights = np.array([v if len(v) == len(layers) else [None] * len(layers) for v in own], dtype=float)
        with np.errstate(invalid="ignore"):
            return [weights[positions].mean(axis=0).tolist() for positions in rows.values()]

    states = [state(event) for event in shown]
    low, high = fit_range(value for one in states for row in one for value in row) or (0.0, 1.0)
    look: Trace = {"zmin": max(low, 0.0), "zmax": high, **({"texttemplate": "%{z:.3f}"} if len(rows) <= 20 else {})}
    slider = Slider.of_rounds([event["round"] + 1 for event in shown])
    note = "Weight β of other decoders for each layer. The colours span all values of the run."
    note += describe_bounds("β", [value for row in states[-1] for value in row])
    title = "β by decoder and layer"
    return [heat_map("beta-layers", title, note, states, list(rows), layers, sliders=[slider], **look)]


def decoder_tensors(run: RunFiles, member: str) -> list[str]:
    """Names of the tensors in the row of the decoder 'client/task'."""
    client, _, task = member.rpartition("/")
    decoders = (event["decoders"].get(task, ()) for event in run.of("profile") if event["client"] == client)
    return list(next(decoders, ()))


def describe_bounds(symbol: str, last: Sequence[float]) -> str:
    """Say when all weights of the last round are 0 or 1, where learning them has ended; otherwise nothing.

    >>> describe_bounds("α", [0.0, 0.004])
    ' All α are 0 in the last round: nobody takes anything from the others.'
    >>> describe_bounds("β", [1.0, 1.0]), describe_bounds("α", [0.1, 1.0])
    (' All β are 1 in the last round, the upper bound: they are no longer learned.', '')
    """
    if all(value < 0.005 for value in last):
        return f" All {symbol} are 0 in the last round: nobody takes anything from the others."
    if all(value > 0.995 for value in last):
        return f" All {symbol} are 1 in the last round, the upper bound: they are no longer learned."
    return ""


def cost_figures(run: RunFiles) -> list[Figure]:
    """Draw seconds of each client and of the whole round, and bytes up and down, by round and in total."""
    events, groups, rounds = run.of("client"), group_clients(run), range(1, run.rounds + 2)
    if not events:
        return []
    about = ("seconds", "Time per round", "Each client's own work; dotted: whole round; last point: final evaluation.")
    times = client_figure(run, about, series(events, lambda event: float(event["seconds"])), rounds, "s")
    whole = {event["round"] + 1: event["seconds"] for event in run.of("round")}
    thick: Trace = {"line": {"color": GREY, "dash": "dot", "width": 3}, "mode": "lines"}
    times.data.extend(draw_series("whole round", GREY, [whole], rounds, **thick))
    about = ("bytes", "Traffic per round", "Upload and download of each client; a gap: a round without it.")
    both = series(events, lambda event: (event["bytes_up"] + event["bytes_down"]) / 2**20)
    sums = {client: np.zeros(2) for clients in groups.groups.values() for client in clients}
    for event in events:
        sums[event["client"]] = sums.get(event["client"], 0) + np.array([event["bytes_up"], event["bytes_down"]])
    means = {label: np.mean([sums[client] for client in same], axis=0) for label, same in groups.groups.items()}
    each = "Mean per group, all rounds" if groups.by_kind else "All rounds"
    total = total_bytes("bytes-total", f"{each}: upload (dark), download (light).", means, groups.colours)
    return [times, client_figure(run, about, both, rounds, "MiB"), total]


def total_bytes(id: str, note: str, sums: Mapping[str, Sequence[float]], colours: Mapping[str, str]) -> Figure:
    """Draw two bars for each label: its bytes up and down."""
    bars: list[Trace] = []
    for i, (way, opacity) in enumerate((("upload", 1.0), ("download", 0.55))):
        size = {"x": list(sums), "y": [float(both[i]) / 2**20 for both in sums.values()]}
        look = {"marker": {"color": [colours[label] for label in sums], "opacity": opacity}}
        hover = f"%{{x}}: %{{y:.4g}} MiB {way}<extra></extra>"
        bars.append({"type": "bar", "name": way, **size, **look, "hovertemplate": hover})
    layout = axes("", "MiB", barmode="group")
    layout["xaxis"] |= {"type": "category"}
    return Figure(id, "Total traffic", note, bars, layout)
