"""The page of several runs: which method is better, by how much, on which clients, and at which cost."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TypeVar

from fedhca2.reports.comparison import BY_CLIENT, DELTA_M, LOCAL, Column, Comparison, gather
from fedhca2.reports.drawings import RANKS_TITLE, draw_ranks, ranking_note, ranking_of
from fedhca2.reports.figures import COLOURS, GREY, Figure, axes, fitted, gain_axes, gain_bars, round_axes, values_of
from fedhca2.reports.figures.conflict import conflict_figures
from fedhca2.reports.figures.curves import (
    MEBIBYTE,
    Series,
    drawn,
    headline_name,
    rounds_to_match,
    series,
    weight_figures,
)
from fedhca2.reports.figures.groups import group_clients
from fedhca2.reports.layouts import marked_cell, marks_note
from fedhca2.reports.page import ONE_EVALUATION, Block, Cell, Drawing, Note, Section, Table
from fedhca2.reports.page.answer import GAIN, comparison_answer
from fedhca2.reports.page.predictions import comparison_galleries
from fedhca2.reports.page.tables import facts_table, marked, versions_table
from fedhca2.reports.variants import differing, flat, variants
from fedhca2.run_folder.reader import RunFiles
from fedhca2.words import BY_CLIENT_MEANS, gain_text, metric_axis

ABSENT = "—"
MOST_BARS = 60  # of gains by group and task
Key = TypeVar("Key")
Variants = Mapping[str, Sequence[RunFiles]]  # the seeds of each row of the table, by label


def several_sections(runs: list[RunFiles]) -> list[Section]:
    """Compare runs: results with differences, curves, predictions, weights, conflicts, cost, and settings."""
    comparison, rows = gather(runs), variants(runs)
    firsts = {label: same[0] for label, same in rows.items()}
    colours = method_colours(rows)
    tables = [results_table(comparison, colours), differences_table(comparison, colours)]
    results = [*comparison_answer(comparison, rows), *_gains(comparison, colours), *tables, *_ranks(comparison)]
    sections = [
        Section("results", "Results", results, colours),
        Section("training", "Training", _curves(rows, colours), colours),
        Section("predictions", "Predictions", comparison_galleries(firsts)),
        Section("alpha-and-beta", "α and β", *_of_each(firsts, weight_figures)),
        Section("conflicts", "Conflicts", *_of_each(firsts, conflict_figures)),
        Section("cost", "Cost", [*_costs(rows, colours), facts_table(runs)], colours),
        Section("settings", "Settings", [settings_table(firsts), common_table(firsts), versions_table(runs)]),
    ]
    return [section for section in sections if section.blocks]


def method_colours(rows: Variants) -> dict[str, str]:
    """A colour for each row of the table, and grey for Local."""
    others = [label for label, same in rows.items() if same[0].method != LOCAL]
    return {label: COLOURS[others.index(label) % len(COLOURS)] if label in others else GREY for label in rows}


def results_table(comparison: Comparison, colours: Mapping[str, str] | None = None) -> Table:
    """Make the papers' table: a row per method, Δm first, the best of each column in bold."""
    columns = [c for c in comparison.columns if c.is_gain] + [c for c in comparison.columns if not c.is_gain]
    rows = [
        [
            Cell(method, colour=(colours or {}).get(method, "")),
            *(
                Cell(
                    marked_cell(comparison, method, column),
                    "best" if comparison.is_best(method, column) else "",
                    comparison.entries[method][column].mean,
                )
                for column in columns
            ),
        ]
        for method in comparison.entries
    ]
    seeds = max(len(entry.values) for row in comparison.entries.values() for entry in row.values())
    note = f"Mean ± standard deviation over {seeds} seeds. " if seeds > 1 else ""
    note += "The best of each column is bold."
    if BY_CLIENT in comparison.columns:
        note += f" Δm by client is {BY_CLIENT_MEANS}."
    note = f"{note} {marks_note(comparison)}".strip()
    return Table("Results", ["method", *(column.heading for column in columns)], rows, note, _over(columns))


def differences_table(comparison: Comparison, colours: Mapping[str, str]) -> Table:
    """List the relative gain of every method over the first one."""
    first, *others = comparison.entries
    columns = [column for column in comparison.columns if not column.is_gain]
    rows = [
        [Cell(method, colour=colours[method]), *(marked(comparison.gain(method, column, first)) for column in columns)]
        for method in others
    ]
    note = "In percent; higher is better for every metric."
    return Table(f"Gain over {first}", ["method", *(column.heading for column in columns)], rows, note, _over(columns))


def _over(columns: Sequence[Column]) -> list[tuple[str, int]]:
    return [(group, len(list(held))) for group, held in groupby(columns, key=lambda column: column.group)]


def settings_table(runs: Mapping[str, RunFiles]) -> Table:
    """List the settings in which the runs differ."""
    settings = [dict(flat(run.settings)) for run in runs.values()]
    keys = differing(list(runs.values()))
    rows = [[Cell(key), *(Cell(str(held.get(key, ABSENT))) for held in settings)] for key in keys]
    return Table("Settings that differ", ["setting", *runs], rows, "For the first seed of each.")


def common_table(runs: Mapping[str, RunFiles]) -> Table:
    """List the settings that all runs have in common."""
    other = set(differing(list(runs.values())))
    common = flat(next(iter(runs.values())).settings)
    rows = [[Cell(key), Cell(str(value))] for key, value in common if key not in other]
    return Table("Settings in common", ["setting", "value"], rows, folded=True)


def _gains(comparison: Comparison, colours: Mapping[str, str]) -> list[Figure]:
    """Draw Δm of every method, with whiskers if it has several seeds, and its gains by group of clients and task."""
    methods = [method for method in comparison.entries if method not in comparison.alone]
    if DELTA_M not in comparison.columns or not methods:
        return []
    bars = []
    for method in methods:
        entry = comparison.entries[method][DELTA_M]
        whisker = {"error_x": {"type": "data", "array": [entry.deviation]}} if entry.deviation is not None else {}
        bars.append(gain_bars(method, colours[method], [method], [entry.mean], meta=method, **whisker))
    entries = [comparison.entries[method][DELTA_M] for method in methods]
    ends = [entry.mean + sign * (entry.deviation or 0.0) for entry in entries for sign in (-1, 1)]
    layout = gain_axes("Δm (%)", ends, 90 + 34 * len(methods), barmode="overlay")
    several = any("error_x" in bar for bar in bars)
    note = "Mean relative gain over training alone"
    note += "; whiskers are standard deviations over seeds." if several else ", of one seed."
    figures = [Figure("delta-m", "Δm", note, bars, layout, wide=True)]
    return figures + _gains_by_column(comparison, methods, colours)


def _gains_by_column(comparison: Comparison, methods: list[str], colours: Mapping[str, str]) -> list[Figure]:
    columns = [column for column in comparison.columns if not column.is_gain]
    local = next(iter(comparison.alone), None)
    if local is None or len(methods) * len(columns) > MOST_BARS:
        return []
    names = [f"{column.group}: {column.task}" for column in columns]
    traces = []
    for method in methods:
        gains = [comparison.gain(method, column, local) for column in columns]
        numbers = {"text": [gain_text(gain) for gain in gains], "textposition": "outside"}
        traces.append(gain_bars(method, colours[method], names, gains, meta=method, **numbers))
    height = 100 + (14 + 18 * len(methods)) * len(columns)
    layout = gain_axes(GAIN, [gain for trace in traces for gain in trace["x"]], height, barmode="group")
    note = "Relative change of the mean score of each group of clients and task."
    return [Figure("gains", "Who gained", note, traces, layout, wide=True)]


def _ranks(comparison: Comparison) -> list[Drawing]:
    ranking = ranking_of(comparison)
    return [Drawing(RANKS_TITLE, draw_ranks(ranking), ranking_note(ranking))] if ranking else []


def _curves(rows: Variants, colours: Mapping[str, str]) -> list[Block]:
    """Draw the scores of every method by client, or by kind of many clients: means and ranges over seeds."""
    figures: list[Block] = []
    first = next(iter(rows.values()))[0]
    most = max(len(same) for same in rows.values())
    note = f"Lines are means of up to {most} seeds, bands reach from the lowest to the highest." if most > 1 else ""
    for number, (label, clients) in enumerate(group_clients(first).groups.items()):
        for task in dict.fromkeys(task for client in clients for task in first.tasks.get(client, ())):
            if (main := headline_name(first, task)) is None:
                continue
            metric, higher = main
            traces = []
            found = {
                method: [mean_series(series(run.of("metric"), task, metric), clients) for run in same]
                for method, same in rows.items()
            }
            for method, held in found.items():
                rounds = sorted({round for one in held for round in one})
                traces += drawn(method, colours[method], held, rounds, band="seeds")
            if max((len(trace["x"]) for trace in traces), default=0) < 2:
                continue
            name = f"{metric_axis(first.task_set[task].unit, metric)}, {'higher' if higher else 'lower'} is better"
            layout = round_axes(first.rounds, name, fitted(values_of(traces)))
            title = f"{label}: {first.task_set[task].title}"
            local = next((held for method, held in found.items() if rows[method][0].method == LOCAL), None)
            told = f"{note} {matching_rounds(found, local, higher)}".strip() if local else note
            figures.append(Figure(f"metric-{number}-{task}", title, told, traces, layout))
    return figures or [Note(ONE_EVALUATION)]


def matching_rounds(found: Mapping[str, Sequence[Series]], local: Sequence[Series], higher: bool) -> str:
    """Say after how many rounds each method's mean is as good as the final mean of Local.

    >>> matching_rounds({"local": [{1: 1.0, 2: 2.0}], "fedper": [{1: 2.0}]}, [{1: 1.0, 2: 2.0}], higher=True)
    "Rounds to local's final score: local 2, fedper 1."
    """
    alone = mean_series(dict(enumerate(local)), range(len(local)))
    if not alone:
        return ""
    means = {method: mean_series(dict(enumerate(held)), range(len(held))) for method, held in found.items()}
    needed = {method: rounds_to_match(one, alone, higher) for method, one in means.items()}
    told = ", ".join(f"{method} {'never' if round is None else round}" for method, round in needed.items())
    return f"Rounds to {LOCAL}'s final score: {told}."


def mean_series(values: Mapping[Key, Series], clients: Sequence[Key]) -> Series:
    """The mean of some clients by round.

    >>> mean_series({"a": {1: 2.0, 2: 3.0}, "b": {1: 4.0}}, ["a", "b", "c"])
    {1: 3.0, 2: 3.0}
    """
    held: dict[int, list[float]] = {}
    for client in clients:
        for round, value in values.get(client, {}).items():
            held.setdefault(round, []).append(value)
    return {round: sum(values) / len(values) for round, values in held.items()}


def _of_each(
    runs: Mapping[str, RunFiles], draw: Callable[[RunFiles], list[Figure]]
) -> tuple[list[Block], dict[str, str]]:
    """The figures of every run that has them, and the colours of the clients."""
    figures: list[Block] = []
    for number, (label, run) in enumerate(runs.items()):
        for figure in draw(run):
            told = f"{figure.note} Seed {run.config['seed']}."
            figures.append(replace(figure, id=f"{figure.id}-of-{number}", title=f"{label}: {figure.title}", note=told))
    return figures, group_clients(next(iter(runs.values()))).colours


def _costs(rows: Variants, colours: Mapping[str, str]) -> list[Figure]:
    first = next(iter(rows.values()))[0]
    seconds = []
    for label, same in rows.items():
        held = [{event["round"] + 1: event["seconds"] for event in run.of("round")} for run in same]
        seconds += drawn(label, colours[label], held, range(1, first.rounds + 1), band="seeds")
    finished = {label: same[0].result["bytes"] for label, same in rows.items() if same[0].result}
    bars = [
        {
            "type": "bar",
            "name": way,
            "x": list(finished),
            "y": [held[way] / MEBIBYTE for held in finished.values()],
            "marker": {"color": [colours[label] for label in finished], "opacity": shade},
            "hovertemplate": f"%{{x}}: %{{y:.4g}} MiB {way}<extra></extra>",
        }
        for way, shade in (("up", 1.0), ("down", 0.55))
    ]
    layout = axes("", "MiB", barmode="group")
    layout["xaxis"] |= {"type": "category"}
    note = "The whole round, including clients and server."
    told = "All clients together, one seed: up (left) and down (right, paler)."
    return [
        Figure("seconds", "Seconds by round", note, seconds, round_axes(first.rounds, "s")),
        Figure("bytes", "Bytes in total", told, bars, layout),
    ]
