"""The page of one run, or of several to compare: its sections, and the HTML file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from plotly.offline import get_plotlyjs

from fedhca2.errors import UserError
from fedhca2.reports.figures import conflict, curves, groups, mixing, transfer
from fedhca2.reports.page import ONE_EVALUATION, Block, Section, Text, fill, predictions, tables
from fedhca2.reports.page.several import several_sections
from fedhca2.run_folder.folder import CONFIG
from fedhca2.run_folder.reader import RunFiles
from fedhca2.version import __version__
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import counted


def write_page(runs: Sequence[RunFiles], path: Path) -> Path:
    """Write the page of one run, or of several to compare."""
    if not runs:
        raise UserError("page", "expected at least one run, got none")
    for run in runs:
        result = run.recorded_result
        missing = {"seconds", "bytes", "versions", "device"} - result.model_fields_set if result else ()
        if missing:
            fault = f"got no {', '.join(missing)}; was it written by an older version?"
            raise UserError(run.path, f"expected a result with the run's cost, {fault}")
    names = list(dict.fromkeys(str(run.config["name"]) for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    sections = single_sections(runs[0]) if len(runs) == 1 else several_sections(list(runs))
    title = ", ".join(methods) if len(methods) <= 4 else counted(len(methods), "method")
    html = render(f"{', '.join(names)}: {title}", sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, html.encode(), ORDINARY)
    return path


def render(title: str, sections: Sequence[Section]) -> str:
    """Render the whole page as text; raises ValueError if two figures have the same id, by which they are drawn."""
    figures = [figure for section in sections for figure in section.figures]
    by_id = {figure.id: figure.to_json() for figure in figures}
    if len(by_id) < len(figures):
        ids = [figure.id for figure in figures]
        raise ValueError(f"figures: expected each id once, got {', '.join(id for id in by_id if ids.count(id) > 1)}")
    data = json.dumps(by_id, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    plotly = {"plotly": get_plotlyjs(), "figures": data}
    return fill("page.html", title=title, sections=sections, version=__version__, **plotly)


def single_sections(run: RunFiles) -> list[Section]:
    """Everything about one run, a section for each tab. A part that the method lacks gets none."""
    answer, scores = tables.run_answer(run), curves.metric_curves(run)
    config = run.config_file.read_text("utf-8")
    results = replace(tables.result_table(run), wide=len(answer) == 1)  # the bars, if there are any
    missing = [ONE_EVALUATION] if not scores and run.of("metric") else []
    parts: Mapping[str, Sequence[Block]] = {
        "Results": [*tables.about_runs([run]), *answer, *tables.kinds_tables(run), results],
        "Training": [*missing, *scores, *curves.loss_curves(run)],
        "Predictions": predictions.run_galleries(run),
        "Learned weights": curves.weight_figures(run),
        "Who helps whom": transfer.transfer_figures(run),
        "Update similarity": conflict.conflict_figures(run),
        "Decoder attention": mixing.attention_figures(run),
        "Client groups": mixing.grouping_figures(run),
        "Participation": [*groups.attendance_figures(run), *tables.reasons_tables(run)],
        "Privacy": tables.privacy_table(run),
        "Cost": [*curves.cost_figures(run), tables.facts_table([run])],
        "Settings": [tables.federation_table(run), Text(CONFIG, config), tables.versions_table([run])],
    }
    colours = groups.group_clients(run).colours
    return [Section(title, blocks, colours) for title, blocks in parts.items() if blocks]
