"""What changes over rounds: scores, losses, seconds, bytes, and the weights that clients learn."""

from collections.abc import Iterable
from statistics import mean

from fedhca2.reports.figures.figure import (
    COLOURS,
    Figure,
    Slider,
    axes,
    line,
    matrix,
    matrix_layout,
    round_axes,
    thinned,
)
from fedhca2.reports.names import metric_axis, metric_title
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.tasks import get_task

Curve = tuple[list[int], list[float]]
MEBIBYTE = 2**20


def curves(events: Iterable[Event], task: str, metric: str) -> dict[str, Curve]:
    """Every client's values of one metric by round; the last value counts if a round was repeated."""
    found: dict[str, dict[int, float]] = {}
    for event in events:
        if event["task"] == task and event["metric"] == metric:
            found.setdefault(event["client"], {})[event["round"]] = event["value"]
    return {client: (list(values), list(values.values())) for client, values in found.items()}


def tasks_of(run: RunFiles) -> list[str]:
    """All tasks of the federation."""
    return list(dict.fromkeys(task for tasks in run.tasks.values() for task in tasks))


def headline_name(run: RunFiles, task: str) -> tuple[str, bool] | None:
    """The task's main metric and whether higher is better, if the run has measured it."""
    scores = {e["metric"]: e["value"] for e in run.of("metric") if e["task"] == task}
    if not scores:
        return None
    main = headline(task, scores)
    return main.metric, main.higher_is_better


def metric_curves(run: RunFiles) -> list[Figure]:
    """Draw one figure per task: the main metric of each client that has it, and of its Local twin."""
    figures = []
    for task in tasks_of(run):
        if (main := headline_name(run, task)) is None:
            continue
        metric, higher = main
        traces = []
        alone = curves(run.baseline_scores, task, metric)
        for number, (client, (rounds, values)) in enumerate(curves(run.of("metric"), task, metric).items()):
            traces.append(line(client, number, rounds, values))
            if client in alone:
                thin = {"color": "#777", "dash": "dot", "width": 1.5}
                traces.append(line(f"{client}, local", number, *alone[client], line=thin, opacity=0.8))
        better = "higher" if higher else "lower"
        layout = round_axes(run.rounds, f"{metric_axis(task, metric)}, {better} is better")
        note = f"{metric_title(metric)} on each client's validation images."
        figures.append(Figure(f"metric-{task}", get_task(task).title, note, traces, layout))
    return figures


def loss_curves(run: RunFiles) -> list[Figure]:
    """Draw one figure per task: the mean training loss of each client that has it."""
    figures = []
    for task in tasks_of(run):
        found = curves(run.of("loss"), task, "loss")
        traces = [
            line(client, i, [r + 1 for r in rounds], values)
            for i, (client, (rounds, values)) in enumerate(found.items())
        ]
        note = "Mean training loss in the last epoch of each round, before the task's weight."
        figures.append(
            Figure(f"loss-{task}", f"{get_task(task).title}, loss", note, traces, round_axes(run.rounds, "loss"))
        )
    return [figure for figure in figures if figure.data]


def cost_figures(run: RunFiles) -> list[Figure]:
    """Draw seconds of each client and of the whole round, and bytes up and down, by round and in total."""
    events = run.of("client")
    if not events:
        return []
    clients = list(dict.fromkeys(event["client"] for event in events))
    seconds, moved = [], []
    for number, client in enumerate(clients):
        own = [event for event in events if event["client"] == client]
        rounds = [event["round"] + 1 for event in own]
        seconds.append(line(client, number, rounds, [event["seconds"] for event in own]))
        both = [(event["bytes_up"] + event["bytes_down"]) / MEBIBYTE for event in own]
        moved.append(line(client, number, rounds, both))
    whole = run.of("round")
    thick = {"color": "#777", "dash": "dot", "width": 3}
    rounds, values = [event["round"] + 1 for event in whole], [event["seconds"] for event in whole]
    seconds.append(line("whole round", 6, rounds, values, line=thick))
    return [
        Figure(
            "seconds",
            "Seconds by round",
            "Each client's own work, and the whole round. The last round only evaluates.",
            seconds,
            round_axes(run.rounds + 1, "s"),
        ),
        Figure(
            "bytes",
            "Bytes by round",
            "Sent to and from each client, in total.",
            moved,
            round_axes(run.rounds + 1, "MiB"),
        ),
        _totals(run, clients),
    ]


def _totals(run: RunFiles, clients: list[str]) -> Figure:
    bars = []
    for number, way in enumerate(("up", "down")):
        sums = [sum(e[f"bytes_{way}"] for e in run.of("client") if e["client"] == client) for client in clients]
        values = [total / MEBIBYTE for total in sums]
        bars.append({"type": "bar", "name": way, "x": clients, "y": values, "marker": {"color": COLOURS[number]}})
    layout = axes("", "MiB", barmode="group")
    return Figure("bytes-total", "Bytes in total", "Rows and numbers that each client sent and received.", bars, layout)


def weight_figures(run: RunFiles) -> list[Figure]:
    """Draw α over rounds, β over rounds, and β by decoder and layer, if the method learns weights."""
    events = [event for event in run.of("weights") if event["weights"]]
    if not events:
        return []
    return [*_alpha(run, events), *_beta(run, events)]


def _alpha(run: RunFiles, events: list[Event]) -> list[Figure]:
    keys = [key for key in events[-1]["weights"] if key.endswith("/encoder")]
    traces = [line(key.removesuffix("/encoder"), i, *_series(events, key)) for i, key in enumerate(keys)]
    note = "How much of the common encoder update each client adds to its own."
    return [Figure("alpha", "α over rounds", note, traces, round_axes(run.rounds, "α"))] if traces else []


def _beta(run: RunFiles, events: list[Event]) -> list[Figure]:
    keys = [key for key in events[-1]["weights"] if "/decoder." in key]
    if not keys:
        return []
    names = [run.short_name(key.replace("/decoder.", "/")) for key in keys]
    traces = [line(name, i, *_series(events, key)) for i, (name, key) in enumerate(zip(names, keys, strict=True))]
    over_rounds = Figure(
        "beta", "β over rounds", "Mean over the layers of each decoder.", traces, round_axes(run.rounds, "mean β")
    )
    shown = [events[i] for i in thinned(len(events))]
    states = [[event["weights"].get(key, []) for key in keys] for event in shown]
    layers = decoder_layers(run, keys[0])
    highest = max(value for state in states for row in state for value in row)
    trace = matrix(states[-1], names, layers, zmin=0, zmax=max(highest, 1e-6), texttemplate="%{z:.3f}")
    steps = Slider("round", [str(event["round"] + 1) for event in shown], [{"z": [state]} for state in states])
    note = "How much of the other decoders' updates each layer adds."
    layout = matrix_layout(len(keys))
    return [
        over_rounds,
        Figure("beta-layers", "β by decoder and layer", note, [trace], layout, wide=True, slider=steps),
    ]


def _series(events: list[Event], key: str) -> tuple[list[int], list[float]]:
    having = [event for event in events if key in event["weights"]]
    return [event["round"] + 1 for event in having], [mean(event["weights"][key]) for event in having]


def decoder_tensors(run: RunFiles, client: str, task: str) -> list[str]:
    """Names of the tensors in a decoder's row."""
    for event in run.of("profile"):
        if event["client"] == client:
            return list(event["decoders"][task])
    return []


def decoder_layers(run: RunFiles, key: str) -> list[str]:
    """Names of the layers with a weight in 'client/decoder.task', or their numbers if the run has no names."""
    client, _, task = key.partition("/decoder.")
    names = dict.fromkeys(name.rpartition(".")[0] for name in decoder_tensors(run, client, task))
    count = len(next(event["weights"][key] for event in run.of("weights") if key in event["weights"]))
    return list(names) if len(names) == count else [f"layer {i + 1}" for i in range(count)]
