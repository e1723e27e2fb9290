"""The page of one run, or of several to compare: its sections, and the HTML file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import yaml
from jinja2 import Environment, PackageLoader

from fedhca2.errors import UserError
from fedhca2.reports.comparison import Comparison, gather
from fedhca2.reports.comparison.critical_difference import TITLE, ranking_note, ranking_of, to_svg
from fedhca2.reports.comparison.gather import BY_CLIENT, DELTA_M
from fedhca2.reports.comparison.layouts import heading, marked_cell, marks_note
from fedhca2.reports.comparison.variants import differing, flat, variants
from fedhca2.reports.figures import Figure
from fedhca2.reports.figures.attendance import attendance_figures
from fedhca2.reports.figures.conflict import conflict_figures
from fedhca2.reports.figures.curves import (
    cost_figures,
    curves,
    headline_name,
    loss_curves,
    metric_curves,
    weight_figures,
)
from fedhca2.reports.figures.figure import COLOURS, axes, line, round_axes
from fedhca2.reports.figures.mixing import attention_figures, grouping_figures
from fedhca2.reports.figures.transfer import transfer_figures
from fedhca2.reports.names import metric_axis
from fedhca2.reports.page.blocks import Cell, Drawing, Gallery, Section, Table, Text, address
from fedhca2.reports.page.tables import (
    declined_table,
    facts_table,
    federation_table,
    left_out_table,
    marked,
    privacy_table,
    result_table,
    versions_table,
)
from fedhca2.reports.pictures import COLUMNS, sample_tiles
from fedhca2.run_folder.names import CONFIG
from fedhca2.run_folder.reader import RunFiles
from fedhca2.tasks import get_task
from fedhca2.version import __version__
from fedhca2.whole_files import ORDINARY, write_whole

SAMPLES = 2  # per client
ABSENT = "—"
Runs = Mapping[str, RunFiles]  # the first seed of each row of the table, by label


class NoPlotly(UserError):  # noqa: N818
    """The page cannot be drawn here."""

    def __init__(self) -> None:
        super().__init__(["a page needs another package: pip install plotly"])


def write_page(runs: Sequence[RunFiles], path: Path) -> Path:
    """Write the page of one run, or of several to compare."""
    if not runs:
        raise UserError(["a page should have at least one run, found none"])
    names = list(dict.fromkeys(str(run.config["name"]) for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    sections = single_sections(runs[0]) if len(runs) == 1 else several_sections(list(runs))
    html = render(f"{', '.join(names)}: {', '.join(methods)}", sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, html.encode(), ORDINARY)
    return path


def render(title: str, sections: Sequence[Section]) -> str:
    """Render the whole page as text."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise NoPlotly from None
    figures = {figure.id: figure.to_json() for section in sections for figure in section.figures}
    environment = Environment(loader=PackageLoader("fedhca2.reports.page"), autoescape=True, trim_blocks=True)
    held = json.dumps(figures, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return environment.get_template("page.html").render(
        title=title, sections=sections, figures=held, plotly=get_plotlyjs(), version=__version__
    )


def single_sections(run: RunFiles) -> list[Section]:
    """Everything about one run. A part that the method lacks gets no section."""
    sections = [
        Section("results", "Results", [result_table(run), federation_table(run), facts_table([run])]),
        Section("training", "Training", [*metric_curves(run), *loss_curves(run)]),
        Section("predictions", "Predictions", galleries(run)),
        Section("weights", "α and β", weight_figures(run)),
        Section("transfer", "Who helps whom", transfer_figures(run)),
        Section("updates", "Conflicts", conflict_figures(run)),
        Section("attention", "Attention", attention_figures(run)),
        Section("groups", "Groups", grouping_figures(run)),
        Section("attendance", "Attendance", [*attendance_figures(run), *left_out_table(run), *declined_table(run)]),
        Section("privacy", "Privacy", privacy_table(run)),
        Section("cost", "Cost", cost_figures(run)),
        Section("settings", "Settings", [Text(CONFIG, _yaml(run)), versions_table([run])]),
    ]
    return [section for section in sections if section.blocks]


def _yaml(run: RunFiles) -> str:
    return yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)


def galleries(run: RunFiles) -> list[Gallery]:
    """Show sample predictions of every client and task beside input and label."""
    found = []
    for client in run.tasks:
        arrays = run.samples(client)
        rows = []
        for index in range(min(SAMPLES, len(arrays["image"])) if arrays else 0):
            for task, tiles in sample_tiles(run, client, index).items():
                rows.append((get_task(task).title, [address(tiles[when]) for when in COLUMNS]))
        if rows:
            found.append(Gallery(client, list(COLUMNS.values()), rows))
    return found


def several_sections(runs: list[RunFiles]) -> list[Section]:
    """Compare runs: results with differences, curves, predictions, cost, and settings that differ."""
    comparison = gather(runs)
    firsts = {label: same[0] for label, same in variants(runs).items()}
    sections = [
        Section(
            "results",
            "Results",
            [*_delta_m(comparison), results_table(comparison), differences_table(comparison), *_ranks(comparison)],
        ),
        Section("training", "Training", _curves(firsts)),
        Section("predictions", "Predictions", _galleries(firsts)),
        Section("cost", "Cost", [facts_table(runs), *_costs(firsts)]),
        Section("settings", "Settings", [settings_table(firsts), versions_table(runs)]),
    ]
    return [section for section in sections if section.blocks]


def results_table(comparison: Comparison) -> Table:
    """Make the papers' table: a row per method, the best of each column in bold."""
    rows = [
        [
            Cell(method),
            *(
                Cell(marked_cell(comparison, method, c), "best" if comparison.is_best(method, c) else "")
                for c in comparison.columns
            ),
        ]
        for method in comparison.entries
    ]
    columns = ["method", *(f"{c.group}: {heading(c)}" if c.group else heading(c) for c in comparison.columns)]
    seeds = max(len(entry.values) for row in comparison.entries.values() for entry in row.values())
    note = f"Mean ± standard deviation over {seeds} seeds. " if seeds > 1 else ""
    note += "The best of each column is bold."
    if BY_CLIENT in comparison.columns:
        note += (
            " Δm uses the mean scores of clients with the same data and tasks; by client, it is the mean of all gains."
        )
    return Table("Results", columns, rows, f"{note} {marks_note(comparison)}".strip())


def differences_table(comparison: Comparison) -> Table:
    """List the relative gain of every method over the first one."""
    first, *others = comparison.entries
    columns = [column for column in comparison.columns if not column.is_gain]
    rows = []
    for method in others:
        rows.append([Cell(method), *(marked(comparison.gain(method, column, first)) for column in columns)])
    names = [f"{column.group}: {heading(column)}" for column in columns]
    return Table(f"Gain over {first}", ["method", *names], rows, "In percent; higher is better for every metric.")


def settings_table(runs: Runs) -> Table:
    """List the settings in which the runs differ."""
    settings = [dict(flat(run.settings)) for run in runs.values()]
    keys = differing(list(runs.values()))
    rows = [[Cell(key), *(Cell(str(held.get(key, ABSENT))) for held in settings)] for key in keys]
    return Table("Settings that differ", ["setting", *runs], rows, "For the first seed of each.")


def _delta_m(comparison: Comparison) -> list[Figure]:
    if DELTA_M not in comparison.columns:
        return []
    entries = [row[DELTA_M] for row in comparison.entries.values()]
    spread = {"type": "data", "array": [entry.deviation or 0.0 for entry in entries]}
    bars = {"type": "bar", "x": list(comparison.entries), "y": [entry.mean for entry in entries], "error_y": spread}
    note = "Mean relative gain over training alone; whiskers are standard deviations over seeds."
    return [Figure("delta-m", "Δm", note, [bars | {"marker": {"color": COLOURS[0]}}], axes("", "Δm (%)"), wide=True)]


def _ranks(comparison: Comparison) -> list[Drawing]:
    ranking = ranking_of(comparison)
    return [Drawing(TITLE, to_svg(ranking), ranking_note(ranking))] if ranking else []


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
            name = f"{metric_axis(task, metric)}, {direction} is better"
            layout = round_axes(first.rounds, name)
            figures.append(Figure(f"metric-{client}-{task}", f"{client}: {get_task(task).title}", "", traces, layout))
    return figures


def _galleries(runs: Runs) -> list[Gallery]:
    """Show one sample of each client: input, label, and every method's prediction."""
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
            "The whole round, including clients and server.",
            seconds,
            round_axes(next(iter(runs.values())).rounds, "s"),
        ),
        Figure("bytes", "Bytes in total", "All clients together.", bars, axes("", "MiB", barmode="group")),
    ]
