"""The first thing on a page: whether federation helped, whom, how certain that is, and what it cost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import mean, stdev

import numpy as np

from fedhca2.reports.comparison import DELTA_M, Comparison, SeedScores
from fedhca2.reports.figures import GREY, Figure, Trace, gain_axes, gain_bars
from fedhca2.reports.figures.groups import ClientGroups, group_clients
from fedhca2.reports.page import AnswerBlock, Block, Cell, Table, Tile
from fedhca2.reports.page.tables import marked
from fedhca2.reports.tables import counting_gains, how_certain
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import task_scores
from fedhca2.words import (
    BY_CLIENT_MEANS,
    DELTA_M_MEANS,
    UNKNOWN,
    UNKNOWN_GAIN,
    counted,
    duration_text,
    gain_text,
    metric_title,
    score_text,
    size_text,
)

MOST_BARS = 40  # more scores than this are drawn as boxes, one per kind and task
ENDS = 5  # the best and the worst of many scores
GAIN = "gain over training alone (%)"
MEANING = (f"Δm is {DELTA_M_MEANS}.",)
NO_BASELINE = "Δm needs a Local baseline, which this run does not have."


@dataclass(frozen=True)
class Gain:
    """What a client's task gained over training alone, in percent."""

    client: str
    task: str
    name: str
    percent: float
    told: str  # both scores


def gains_of(run: RunFiles) -> list[Gain]:
    """The gains that are known, in the order of the clients and their tasks."""
    result = run.result or {"clients": {}, "baseline": None}
    gains = []
    for one in task_scores(result["clients"], result["baseline"], run.task_set):
        if one.alone and isfinite(one.gain):
            alone, ours = (score_text(score.unit, score.value) for score in (one.alone, one.ours))
            told = f"{metric_title(one.ours.metric)} {alone} alone, {ours} with {run.method}"
            gains.append(Gain(one.client, one.task, run.short_name(f"{one.client}/{one.task}"), one.gain, told))
    return gains


def run_answer(run: RunFiles) -> list[Block]:
    """Δm, what each client and task gained, and what it cost."""
    gains = gains_of(run)
    answer = _answer(run, gains)
    if not gains:
        return [answer]
    cast = group_clients(run)
    if len(gains) <= MOST_BARS:
        return [answer, _bars(cast, gains)]
    return [answer, _boxes(run, gains), _ends(cast, gains)]


def _answer(run: RunFiles, gains: Sequence[Gain]) -> AnswerBlock:
    result = run.result
    if result is None:
        done = len(run.of("round"))
        return AnswerBlock(
            "Δm", UNKNOWN, (), f"The run is not finished. {done} of {counted(run.rounds, 'round')} done.", ()
        )
    name = f"Δm of {run.method}"
    if not result["baseline"]:
        return AnswerBlock(name, UNKNOWN, MEANING, NO_BASELINE, _cost_tiles(run))
    percent = [gain for gain in counting_gains(result["clients"], result["baseline"], run.task_set) if isfinite(gain)]
    meaning = list(MEANING)
    if len(percent) > 1:
        meaning.append(
            f"From score to score, the {len(percent)} gains have a standard deviation of {stdev(percent):.1f} %. "
            "That is no error bar of Δm, which takes several seeds."
        )
    by_client: dict[str, list[float]] = {}
    for gain in gains:
        by_client.setdefault(gain.client, []).append(gain.percent)
    helped = sum(mean(held) > 0 for held in by_client.values())
    sentence = f"{run.method} helped {helped:,} of {len(by_client):,} clients. "
    sentence += how_certain(result["clients"], result["baseline"], run.task_set)
    delta = result["delta_m"]
    if delta is None or not isfinite(delta):
        return AnswerBlock(name, UNKNOWN, meaning, UNKNOWN_GAIN, [*_end_tiles(gains), *_cost_tiles(run)])
    tiles = [*_end_tiles(gains), *_cost_tiles(run)]
    if run.several_of_a_kind and result["delta_m_by_client"] is not None:
        tiles.append(Tile("Δm by client", gain_text(result["delta_m_by_client"]), BY_CLIENT_MEANS))
    return AnswerBlock(name, gain_text(delta), meaning, sentence, tiles, _sign(delta))


def _sign(gain: float) -> str:
    return marked(gain).mark


def _end_tiles(gains: Sequence[Gain]) -> list[Tile]:
    if len(gains) < 2:
        return []
    ranked = sorted(gains, key=lambda gain: gain.percent)
    ends = (("Best", ranked[-1]), ("Worst", ranked[0]))
    return [Tile(word, gain_text(one.percent), f"{one.name}: {one.told}", _sign(one.percent)) for word, one in ends]


def _cost_tiles(run: RunFiles) -> list[Tile]:
    result = run.finished_result
    up, down = result["bytes"]["up"], result["bytes"]["down"]
    clients, rounds = max(1, len(result["clients"])), max(1, run.rounds)
    alone = run.baseline.result if run.baseline.begun else None
    besides = f", and {duration_text(alone['seconds'])} for Local" if alone else ""
    return [
        Tile("Time", duration_text(result["seconds"]), f"{counted(rounds, 'round')} on {result['device']}{besides}"),
        Tile(
            "Traffic",
            size_text(up + down),
            f"{size_text(up)} up, {size_text(down)} down; "
            f"{size_text((up + down) / clients / rounds)} a client and round",
        ),
    ]


def _bars(cast: ClientGroups, gains: Sequence[Gain]) -> Figure:
    """Draw a bar per client and task, in the client's colour."""
    labels, traces = cast.labels, list[Trace]()
    for label, colour in cast.colours.items():
        own = [gain for gain in gains if labels.get(gain.client) == label]
        if not own:
            continue
        numbers = {"text": [gain_text(gain.percent) for gain in own], "textposition": "outside"}
        told = {"hovertext": [gain.told for gain in own], "hovertemplate": "%{y}<br>%{hovertext}<extra></extra>"}
        percent = [gain.percent for gain in own]
        traces.append(gain_bars(label, colour, [gain.name for gain in own], percent, **numbers, **told))
    height = 90 + 30 * len(gains)
    layout = gain_axes(GAIN, [gain.percent for gain in gains], height, barmode="overlay", bargap=0.25)
    layout["yaxis"] |= {"categoryorder": "array", "categoryarray": [gain.name for gain in gains]}
    note = "Relative change of each client's score in every task; right of 0 is better, whichever way the metric goes."
    return Figure("gains", "Who gained", note, traces, layout)


def _boxes(run: RunFiles, gains: Sequence[Gain]) -> Figure:
    """Draw quantiles of the gains of each kind and task."""
    cast, tasks = group_clients(run), run.task_set
    labels, groups = cast.labels, dict[tuple[str, str], list[float]]()
    for gain in gains:
        groups.setdefault((labels.get(gain.client, gain.client), gain.task), []).append(gain.percent)
    traces: list[Trace] = []
    for (label, task), held in groups.items():
        least, low, middle, high, most = ([float(v)] for v in np.quantile(held, (0.05, 0.25, 0.5, 0.75, 0.95)))
        box = {"q1": low, "median": middle, "q3": high, "lowerfence": least, "upperfence": most}
        name = f"{label} · {tasks[task].title} ({len(held):,})"
        colour = cast.colours.get(label, GREY)
        shape = {"type": "box", "orientation": "h", "y": [name], "name": name}
        traces.append({**shape, **box, "line": {"color": colour}, "fillcolor": f"{colour}40", "width": 0.6})
    ends = [value for trace in traces for fence in ("lowerfence", "upperfence") for value in trace[fence]]
    layout = gain_axes(GAIN, ends, 100 + 44 * len(traces))
    note = "Median, middle half and, as whiskers, the middle 90 % of the clients of a kind; their number in brackets."
    return Figure("gains", "Who gained", note, traces, layout, wide=True)


def _ends(cast: ClientGroups, gains: Sequence[Gain]) -> Table:
    ranked, labels, colours = sorted(gains, key=lambda gain: -gain.percent), cast.labels, cast.colours
    rows = [
        [Cell(one.name, colour=colours.get(labels.get(one.client, ""), "")), Cell(one.told), marked(one.percent)]
        for one in [*ranked[:ENDS], *ranked[-ENDS:]]
    ]
    return Table(f"The best {ENDS} and the worst {ENDS}", ["client", "scores", "gain"], rows, wide=False)


def comparison_answer(comparison: Comparison, runs: Mapping[str, Sequence[RunFiles]]) -> list[Block]:
    """The method with the highest Δm, its spread over seeds, the others, and what it cost."""
    others = {m: row[DELTA_M] for m, row in comparison.entries.items() if DELTA_M in row and m not in comparison.alone}
    known = {method: entry for method, entry in others.items() if isfinite(entry.mean)}
    if not known:
        sentence = "Δm is unknown: it needs a run of local with the same settings and seeds, or a baseline in each run."
        return [AnswerBlock("Δm", UNKNOWN, MEANING, sentence, ())]
    ranked = sorted(known, key=lambda method: -known[method].mean)
    best = ranked[0]
    beyond = comparison.is_beyond_chance(best, DELTA_M)
    sentence = f"{best} gains most over training alone"
    sentence += (
        "."
        if comparison.p_values.get(best) is None
        else (", by more than chance explains." if beyond else ", but not by more than chance explains.")
    )
    tiles = [
        Tile(f"Δm of {method}", f"{known[method].mean:+.2f} %", _over_seeds(known[method]), _sign(known[method].mean))
        for method in ranked[1:5]
    ]
    tiles += _cost_tiles(runs[best][0])
    mean_gain, meaning = known[best].mean, [*MEANING, _over_seeds(known[best])]
    return [AnswerBlock(f"Δm of {best}", f"{mean_gain:+.2f} %", meaning, sentence, tiles, _sign(mean_gain))]


def _over_seeds(entry: SeedScores) -> str:
    if entry.deviation is None:
        return "One seed: how much that varies is unknown."
    return f"± {entry.deviation:.2f} % from seed to seed: the standard deviation of {len(entry.values)} seeds."
