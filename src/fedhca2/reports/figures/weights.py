"""The weights α and β that clients learn."""

from collections.abc import Sequence

import numpy as np

from fedhca2.reports.figures.cast import Cast, cast_of, numbers
from fedhca2.reports.figures.curves import Series, lines, reading, tasks_of
from fedhca2.reports.figures.figure import (
    Figure,
    Slider,
    fitted,
    matrix,
    matrix_layout,
    round_axes,
    thinned,
    values_of,
)
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.reader import RunFiles

NUMBERED = 20  # most rows with numbers in them


def weight_figures(run: RunFiles) -> list[Figure]:
    """Draw α over rounds, β over rounds, and β by decoder and layer, if the method learns weights."""
    events = [event for event in run.of("weights") if event["weights"]]
    if not events:
        return []
    cast = cast_of(run)
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


def _layers(run: RunFiles, cast: Cast, events: list[Event]) -> list[Figure]:
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
