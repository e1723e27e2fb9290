"""The page of one run, or of several to compare: its sections, and the HTML file."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

import yaml
from jinja2 import Environment, PackageLoader

from fedhca2.errors import UserError
from fedhca2.reports.figures.conflict import conflict_figures
from fedhca2.reports.figures.curves import cost_figures, loss_curves, metric_curves, weight_figures
from fedhca2.reports.figures.groups import attendance_figures, group_clients
from fedhca2.reports.figures.mixing import attention_figures, grouping_figures
from fedhca2.reports.figures.transfer import transfer_figures
from fedhca2.reports.page import ONE_EVALUATION, Block, Note, Section, Text
from fedhca2.reports.page.answer import run_answer
from fedhca2.reports.page.predictions import run_galleries
from fedhca2.reports.page.several import several_sections
from fedhca2.reports.page.tables import (
    declined_table,
    facts_table,
    federation_table,
    kinds_tables,
    left_out_table,
    privacy_table,
    result_table,
    versions_table,
)
from fedhca2.run_folder.names import CONFIG
from fedhca2.run_folder.reader import RunFiles
from fedhca2.version import __version__
from fedhca2.whole_files import ORDINARY, write_whole

COST = ("seconds", "bytes", "versions", "device")
# The tabs of a run, in their order: title, and what makes the blocks. A tab without blocks is left out.
SECTIONS: Mapping[str, tuple[str, Callable[[RunFiles], Sequence[Block]]]] = {
    "results": ("Results", lambda run: _results(run)),
    "training": ("Training", lambda run: _training(run)),
    "predictions": ("Predictions", run_galleries),
    "alpha-and-beta": ("α and β", weight_figures),
    "who-helps-whom": ("Who helps whom", transfer_figures),
    "conflicts": ("Conflicts", conflict_figures),
    "attention": ("Attention", attention_figures),
    "groups": ("Groups", grouping_figures),
    "attendance": (
        "Attendance",
        lambda run: [*attendance_figures(run), *left_out_table(run), *declined_table(run)],
    ),
    "privacy": ("Privacy", privacy_table),
    "cost": ("Cost", lambda run: [*cost_figures(run), facts_table([run])]),
    "settings": ("Settings", lambda run: [federation_table(run), Text(CONFIG, _yaml(run)), versions_table([run])]),
}


class NoPlotly(UserError):  # noqa: N818
    """The page cannot be drawn here."""

    def __init__(self) -> None:
        super().__init__(["a page needs another package: pip install plotly"])


def write_page(runs: Sequence[RunFiles], path: Path) -> Path:
    """Write the page of one run, or of several to compare."""
    if not runs:
        raise UserError(["a page should have at least one run, found none"])
    for run in runs:
        if run.result is not None and (missing := [key for key in COST if key not in run.result]):
            raise UserError([f"{run.path}: the result should say what the run cost, found no {', '.join(missing)}"])
    names = list(dict.fromkeys(str(run.config["name"]) for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    sections = single_sections(runs[0]) if len(runs) == 1 else several_sections(list(runs))
    html = render(f"{', '.join(names)}: {', '.join(methods)}", sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, html.encode(), ORDINARY)
    return path


def render(title: str, sections: Sequence[Section]) -> str:
    """Render the whole page as text; raises ValueError if two figures have the same id, by which they are drawn."""
    try:
        from plotly.offline import get_plotlyjs
    except ImportError:
        raise NoPlotly from None
    drawn = [figure for section in sections for figure in section.figures]
    figures = {figure.id: figure.to_json() for figure in drawn}
    if len(figures) < len(drawn):
        ids = [figure.id for figure in drawn]
        raise ValueError(
            f"ids of figures: expected each once, got {', '.join(id for id in figures if ids.count(id) > 1)}"
        )
    environment = Environment(
        loader=PackageLoader("fedhca2.reports.page"), autoescape=True, trim_blocks=True, lstrip_blocks=True
    )
    held = json.dumps(figures, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    return environment.get_template("page.html").render(
        title=title, sections=sections, figures=held, plotly=get_plotlyjs(), version=__version__
    )


def single_sections(run: RunFiles) -> list[Section]:
    """Everything about one run. A part that the method lacks gets no section."""
    colours = group_clients(run).colours
    sections = [Section(id, title, blocks(run), colours) for id, (title, blocks) in SECTIONS.items()]
    return [section for section in sections if section.blocks]


def _results(run: RunFiles) -> list[Block]:
    """The answer, and the table of all scores, beside the bars if there are any."""
    answer = run_answer(run)
    return [*_about(run), *answer, *kinds_tables(run), replace(result_table(run), wide=len(answer) == 1)]


def _about(run: RunFiles) -> list[Note]:
    """The experiment's title, when it started, and the command, as far as the run has them."""
    title, origin = run.config.get("title") or "", (run.result or {}).get("origin")
    told = [f"{title}."] if title else []
    if origin:
        told.append(f"Started {datetime.fromisoformat(origin['started']):%d %B %Y, %H:%M} UTC: {origin['command']}")
    return [Note(" ".join(told))] if told else []


def _training(run: RunFiles) -> list[Block]:
    scores = metric_curves(run)
    missing = [Note(ONE_EVALUATION)] if not scores and run.of("metric") else []
    return [*missing, *scores, *loss_curves(run)]


def _yaml(run: RunFiles) -> str:
    return yaml.safe_dump(run.config, sort_keys=False, allow_unicode=True)
