"""The page of one run, section by section."""

import yaml

from fedhca2.reports.figures.attendance import attendance_figures, left_out
from fedhca2.reports.figures.conflict import conflict_figures
from fedhca2.reports.figures.cost import cost_figures
from fedhca2.reports.figures.curves import loss_curves, metric_curves
from fedhca2.reports.figures.mixing import attention_figures, grouping_figures
from fedhca2.reports.figures.weights import weight_figures
from fedhca2.reports.page.blocks import Cell, Gallery, Section, Table, Text, address
from fedhca2.reports.page.tables import declined_table, federation_table, left_out_table, privacy_table, result_table
from fedhca2.reports.pictures import COLUMNS, sample_tiles
from fedhca2.run_folder.names import CONFIG
from fedhca2.run_folder.reader import RunFiles
from fedhca2.tasks import get_task

SAMPLES = 2  # of each client


def single_sections(run: RunFiles) -> list[Section]:
    """Everything about one run; what a method does not have has no section."""
    sections = [
        Section("results", "Results", [result_table(run), federation_table(run), facts_table([run])]),
        Section("training", "Training", [*metric_curves(run), *loss_curves(run)]),
        Section("predictions", "Predictions", galleries(run)),
        Section("weights", "α and β", weight_figures(run)),
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
    """Sample predictions of every client and task beside input and label."""
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


def facts_table(runs: list[RunFiles]) -> Table:
    """Rounds, seed, time, traffic and device of each run."""
    rows = []
    for run in runs:
        result = run.result
        traffic = [f"{result['bytes'][way] / 2**20:.1f} MiB" for way in ("up", "down")] if result else ["", ""]
        seconds = f"{result['seconds']:.0f} s" if result else "not finished"
        facts = [
            str(run.config["rounds"]),
            str(run.config["seed"]),
            seconds,
            *traffic,
            str(len(left_out(run))),
            result["device"] if result else "",
        ]
        rows.append([Cell(run.method), *map(Cell, facts)])
    return Table(
        "The run" if len(runs) == 1 else "The runs",
        ["method", "rounds", "seed", "time", "up", "down", "left out", "device"],
        rows,
    )


def versions_table(runs: list[RunFiles]) -> Table:
    """The software that was used."""
    names = list(dict.fromkeys(name for run in runs if run.result for name in run.result["versions"]))
    rows = [
        [Cell(run.method), *(Cell(str(run.result["versions"].get(name, ""))) for name in names)]
        for run in runs
        if run.result
    ]
    return Table("Versions", ["method", *names], rows)
