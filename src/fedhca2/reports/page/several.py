"""The page of several runs side by side."""

from collections.abc import Iterator
from typing import Any

from fedhca2.reports.comparison import Comparison, gather
from fedhca2.reports.comparison.gather import DELTA_M
from fedhca2.reports.comparison.layouts import heading, shown
from fedhca2.reports.figures import Figure
from fedhca2.reports.figures.curves import curves, headline_name
from fedhca2.reports.figures.figure import COLOURS, axes, line, round_axes
from fedhca2.reports.names import metric_title
from fedhca2.reports.page.blocks import Cell, Gallery, Section, Table, address
from fedhca2.reports.page.single import facts_table, versions_table
from fedhca2.reports.page.tables import marked
from fedhca2.reports.pictures import sample_tiles
from fedhca2.reports.run_files import RunFiles
from fedhca2.tasks import get_task

ABSENT = "—"


def several_sections(runs: list[RunFiles]) -> list[Section]:
    """Results with differences, curves, predictions, cost and the settings in which the runs differ."""
    comparison = gather(runs)
    firsts = list({run.method: run for run in reversed(runs)}.values())[::-1]
    sections = [
        Section(
            "results", "Results", [*_delta_m(comparison), results_table(comparison), differences_table(comparison)]
        ),
        Section("training", "Training", _curves(firsts)),
        Section("predictions", "Predictions", _galleries(firsts)),
        Section("cost", "Cost", [facts_table(runs), *_costs(firsts)]),
        Section("settings", "Settings", [settings_table(runs), versions_table(runs)]),
    ]
    return [section for section in sections if section.blocks]


def results_table(comparison: Comparison) -> Table:
    """The papers' table: a row per method, the best of each column in bold."""
    rows = [
        [
            Cell(method),
            *(Cell(shown(row[c], c), "best" if comparison.is_best(method, c) else "") for c in comparison.columns),
        ]
        for method, row in comparison.entries.items()
    ]
    columns = ["method", *(f"{c.group}: {heading(c)}" if c.group else heading(c) for c in comparison.columns)]
    seeds = max(len(entry.values) for row in comparison.entries.values() for entry in row.values())
    note = f"Mean ± standard deviation over {seeds} seeds. " if seeds > 1 else ""
    return Table("Results", columns, rows, note + "The best of each column is bold.")


def differences_table(comparison: Comparison) -> Table:
    """Relative gain of every method over the first one."""
    first, *others = comparison.entries
    columns = [column for column in comparison.columns if column != DELTA_M]
    rows = []
    for method in others:
        rows.append([Cell(method), *(marked(comparison.gain(method, column, first)) for column in columns)])
    names = [f"{column.group}: {heading(column)}" for column in columns]
    return Table(f"Gain over {first}", ["method", *names], rows, "In percent; more is better whatever the metric.")


def settings_table(runs: list[RunFiles]) -> Table:
    """The settings in which the runs differ."""
    flat = [dict(_flat(run.config)) for run in runs]
    keys = list(dict.fromkeys(key for settings in flat for key in settings))
    other = [key for key in keys if len({repr(settings.get(key)) for settings in flat}) > 1]
    rows = [[Cell(key), *(Cell(str(settings.get(key, ABSENT))) for settings in flat)] for key in other]
    return Table("Settings that differ", ["setting", *(str(run.path.name) for run in runs)], rows)


def _flat(value: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flat(item, f"{place}.{key}" if place else str(key))
    else:
        yield place, value


def _delta_m(comparison: Comparison) -> list[Figure]:
    if DELTA_M not in comparison.columns:
        return []
    entries = [row[DELTA_M] for row in comparison.entries.values()]
    spread = {"type": "data", "array": [entry.deviation or 0.0 for entry in entries]}
    bars = {"type": "bar", "x": list(comparison.entries), "y": [entry.mean for entry in entries], "error_y": spread}
    note = "Mean relative gain over training alone; whiskers are standard deviations over seeds."
    return [Figure("delta-m", "Δm", note, [bars | {"marker": {"color": COLOURS[0]}}], axes("", "Δm (%)"), wide=True)]


def _curves(runs: list[RunFiles]) -> list[Figure]:
    figures = []
    for client, tasks in runs[0].tasks.items():
        for task in tasks:
            if (main := headline_name(runs[0], task)) is None:
                continue
            metric, higher = main
            found = [(run.method, curves(run, "metric", task, metric).get(client)) for run in runs]
            traces = [line(method, i, *curve) for i, (method, curve) in enumerate(found) if curve]
            direction = "higher" if higher else "lower"
            name = f"{metric_title(metric)} ({get_task(task).unit}), {direction} is better"
            layout = round_axes(runs[0].rounds, name)
            figures.append(Figure(f"metric-{client}-{task}", f"{client}: {get_task(task).title}", "", traces, layout))
    return figures


def _galleries(runs: list[RunFiles]) -> list[Gallery]:
    """One sample of each client: input, label, and what every method makes of it."""
    found = []
    for client in runs[0].tasks:
        having = [run for run in runs if run.samples(client)]
        if not having:
            continue
        tiles = {run.method: sample_tiles(run, client, 0) for run in having}
        rows = []
        for task, first in tiles[having[0].method].items():
            pictures = [first["image"], first["label"], *(tiles[run.method][task]["after"] for run in having)]
            rows.append((get_task(task).title, [address(picture) for picture in pictures]))
        found.append(Gallery(client, ["input", "label", *tiles], rows))
    return found


def _costs(runs: list[RunFiles]) -> list[Figure]:
    seconds = [
        line(run.method, i, [e["round"] + 1 for e in run.of("round")], [e["seconds"] for e in run.of("round")])
        for i, run in enumerate(runs)
    ]
    finished = [(run.method, run.result["bytes"]) for run in runs if run.result]
    bars = [
        {
            "type": "bar",
            "name": way,
            "x": [m for m, _ in finished],
            "y": [b[way] / 2**20 for _, b in finished],
            "marker": {"color": COLOURS[i]},
        }
        for i, way in enumerate(("up", "down"))
    ]
    return [
        Figure(
            "seconds",
            "Seconds by round",
            "The whole round, clients and server.",
            seconds,
            round_axes(runs[0].rounds, "s"),
        ),
        Figure("bytes", "Bytes in all", "All clients together.", bars, axes("", "MiB", barmode="group")),
    ]
