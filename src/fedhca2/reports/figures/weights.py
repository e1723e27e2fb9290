"""The weights that clients learn: α of encoders, β of decoders."""

from statistics import mean

from fedhca2.reports.figures.figure import Figure, Slider, line, matrix, matrix_layout, round_axes, thinned
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import RunFiles


def weight_figures(run: RunFiles) -> list[Figure]:
    """α over rounds, β over rounds, and β by decoder and layer; nothing where the method learns none."""
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
    note = "How much of the other decoders' updates each layer takes in."
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
    """Names of the layers that 'client/decoder.task' has a weight for, or their numbers where the run has no names."""
    client, _, task = key.partition("/decoder.")
    names = dict.fromkeys(name.rpartition(".")[0] for name in decoder_tensors(run, client, task))
    count = len(next(event["weights"][key] for event in run.of("weights") if key in event["weights"]))
    return list(names) if len(names) == count else [f"layer {i + 1}" for i in range(count)]
