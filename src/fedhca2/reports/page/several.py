"""The page of several runs side by side."""

from collections.abc import Mapping

from fedhca2.reports.comparison import Comparison, gather
from fedhca2.reports.comparison.gather import BY_CLIENT, DELTA_M
from fedhca2.reports.comparison.layouts import heading, shown
from fedhca2.reports.comparison.variants import differing, flat, variants
from fedhca2.reports.figures import Figure
from fedhca2.reports.figures.curves import curves, headline_name
from fedhca2.reports.figures.figure import COLOURS, axes, line, round_axes
from fedhca2.reports.names import metric_title
from fedhca2.reports.page.blocks import Cell, Gallery, Section, Table, address
from fedhca2.reports.page.single import facts_table, versions_table
from fedhca2.reports.page.tables import marked
from fedhca2.reports.pictures import sample_tiles
from fedhca2.run_folder.reader import RunFiles
from fedhca2.tasks import get_task

ABSENT = "—"
Runs = Mapping[str, RunFiles]  # the first seed of each row of the table, by label


def several_sections(runs: list[RunFiles]) -> list[Section]:
    """Results with differences, curves, predictions, cost and the settings in which the runs differ."""
    comparison = gather(runs)
    firsts = {label: same[0] for label, same in variants(runs).items()}
    sections = [
        Section(
            "results", "Results", [*_delta_m(comparison), results_table(comparison), differences_table(comparison)]
        ),
        Section("training", "Training", _curves(firsts)),
        Section("predictions", "Predictions", _galleries(firsts)),
        Section("cost", "Cost", [facts_table(runs), *_costs(firsts)]),
        Section("settings", "Settings", [settings_table(firsts), versions_table(runs)]),
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
    note += "The best of each column is bold."
    if BY_CLIENT in comparison.columns:
        note += (
            " Δm is of the mean scores of clients with the same data and tasks; by client it is the mean of all gains."
        )
    return Table("Results", columns, rows, note)


def differences_table(comparison: Comparison) -> Table:
    """Relative gain of every method over the first one."""
    first, *others = comparison.entries
    columns = [column for column in comparison.columns if not column.is_gain]
    rows = []
    for method in others:
        rows.append([Cell(method), *(marked(comparison.gain(method, column, first)) for column in columns)])
    names = [f"{column.group}: {heading(column)}" for column in columns]
    return Table(f"Gain over {first}", ["method", *names], rows, "In percent; more is better whatever the metric.")


def settings_table(runs: Runs) -> Table:
    """The settings in which the runs differ."""
    settings = [dict(flat(run.config)) for run in runs.values()]
    keys = differing(list(runs.values()))
    rows = [[Cell(key), *(Cell(str(held.get(key, ABSENT))) for held in settings)] for key in keys]
    return Table("Settings that differ", ["setting", *runs], rows, "Of the first seed of each.")


def _delta_m(comparison: Comparison) -> list[Figure]:
    if DELTA_M not in comparison.columns:
        return []
    entries = [row[DELTA_M] for row in comparison.entries.values()]
    spread = {"type": "data", "array": [entry.deviation or 0.0 for entry in entries]}
    bars = {"type": "bar", "x": list(comparison.entries), "y": [entry.mean for entry in entries], "error_y": spread}
    note = "Mean relative gain over training alone; whiskers are standard deviations over seeds."
    return [Figure("delta-m", "Δm", note, [bars | {"marker": {"color": COLOURS[0]}}], axes("", "Δm (%)"), wide=True)]


def _curves(runs: Runs) -> list[Figure]:
    figures = []
    first = next(iter(runs.values()))
    for client, tasks in first.tasks.items():
        for task in tasks:
            if (main := headline_name(first, task)) is None:
                continue
            metric, higher = main
            found = [(label, curves(run.of("metric"), task, metric).get(client)) for label, run in runs.items()]
            traces = [line(label, i, *curve) for i, (label, curve) in enumerate(found) if curve]
            direction = "higher" if higher else "lower"
            name = f"{metric_title(metric)} ({get_task(task).unit}), {direction} is better"
            layout = round_axes(first.rounds, name)
            figures.append(Figure(f"metric-{client}-{task}", f"{client}: {get_task(task).title}", "", traces, layout))
    return figures


def _galleries(runs: Runs) -> list[Gallery]:
    """One sample of each client: input, label, and what every method makes of it."""
    found = []
    for client in next(iter(runs.values())).tasks:
        tiles = {label: sample_tiles(run, client, 0) for label, run in runs.items() if run.samples(client)}
        if not tiles:
            continue
        rows = []
        for task, first in next(iter(tiles.values())).items():
            pictures = [first["image"], first["label"], *(held[task]["after"] for held in tiles.values())]
            rows.append((get_task(task).title, [address(picture) for picture in pictures]))
        found.append(Gallery(client, ["input", "label", *tiles], rows))
    return found


def _costs(runs: Runs) -> list[Figure]:
    seconds = [
        line(label, i, [e["round"] + 1 for e in run.of("round")], [e["seconds"] for e in run.of("round")])
        for i, (label, run) in enumerate(runs.items())
    ]
    finished = [(label, run.result["bytes"]) for label, run in runs.items() if run.result]
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
            round_axes(next(iter(runs.values())).rounds, "s"),
        ),
        Figure("bytes", "Bytes in all", "All clients together.", bars, axes("", "MiB", barmode="group")),
    ]
