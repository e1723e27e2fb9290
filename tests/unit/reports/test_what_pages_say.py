"""What pages say, as text: pages/*.txt. After a change on purpose, write them again:

PYTHONPATH=src:tests python tests/unit/reports/test_what_pages_say.py
"""

import json
from functools import singledispatch
from math import isfinite
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from fedhca2.reports.comparison import gather
from fedhca2.reports.figures import Figure
from fedhca2.reports.layouts import to_latex, to_markdown
from fedhca2.reports.page import AnswerBlock, Drawing, Gallery, Section, Table, Text
from fedhca2.reports.page.several import several_sections
from fedhca2.reports.page.write import single_sections
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import privacy_spent
from made_run import crowded_run, made_run, with_diagnostics, with_events, with_twin

PAGES = Path(__file__).parent / "pages"
ORIGIN = {"command": "fedhca2 compare", "started": "2026-11-18T13:16:34+00:00", "git": None}


@singledispatch
def lines_of(block):
    """A block of a page in lines."""
    return [block]  # a remark


@lines_of.register
def _(block: Table):
    rows = [" | ".join(f"{cell.text}{f' ({cell.mark})' * bool(cell.mark)}" for cell in row) for row in block.rows]
    return [block.title, block.note, " | ".join(block.columns), *rows]


@lines_of.register
def _(block: AnswerBlock):
    tiles = [f"{tile.name}: {tile.fact}, {tile.detail}" for tile in block.tiles]
    return [f"{block.name}: {block.number} {block.mark}", *block.meaning, *block.sentences, *tiles]


@lines_of.register
def _(block: Gallery):
    key = [name for name, _ in block.key.swatches] or [*block.key.ends, block.key.words]
    rows = [f"{word}: {' | '.join(picture.caption for picture in pictures)}" for word, pictures in block.rows]
    return [block.title, f"{' | '.join(block.columns)}; {' '.join(key)}", *rows]


@lines_of.register
def _(block: Figure):
    sliders = [f"{one.name} from {one.labels[one.start]}: {', '.join(one.labels)}" for one in block.sliders]
    return [f"{block.title} [{block.id}]", block.note, *map(trace_line, block.data), *sliders]


@lines_of.register
def _(block: Text | Drawing):
    return [block.title]


def trace_line(trace):
    """The names and axes of a trace, and its numbers: all of a bar, and of a curve the last finite one."""
    match trace["type"]:
        case "heatmap":
            return f"  {trace['y']} over {trace['x']} {trace.get('text', '')}"
        case "bar":
            names, numbers = (trace[axis] for axis in ("yx" if "orientation" in trace else "xy"))
            shown = ", ".join(f"{name} {number:.3g}" for name, number in zip(names, numbers, strict=True))
            return f"  {trace['name']}: {shown}{' ±' * ('error_x' in trace)}"
        case "box":
            return f"  {trace['name']}: median {trace['median'][0]:.3g}"
    if "lines" in trace["mode"]:
        return f"  {trace['name']}: {trace['x'][-1]}, {[value for value in trace['y'] if isfinite(value)][-1]:.3g}"
    return f"  {trace.get('name', '')}: {len(trace['x'])} points"  # whose positions depend on the machine


def complete(folder):
    """A run with a baseline, diagnostics, noise, a title and an origin."""
    run = with_diagnostics(made_run(folder, better=1.25))
    made_run(folder / "baseline", "local")
    written = json.loads((folder / "result.json").read_text())
    spent = privacy_spent(2.0, {"road": 3, "home": 1})
    (folder / "result.json").write_text(json.dumps({**written, "privacy": spent, "origin": ORIGIN}))
    with (folder / "config.yaml").open("a") as config:
        config.write("title: Three small clients\n")
    return single_sections(RunFiles.open(run.path))


def with_faults(folder):
    """A run without some clients and replies, without the baseline of one, and without the gain of another."""
    reasons = {"home": "no reply in time", "node 7": "unknown client", "road (again)": "a client should reply once"}
    run = made_run(folder, away=("shop", "home"), refused=reasons.items())
    failed = {"event": "failed", "round": 3, "client": "road", "why": "the loss became nan"}
    run = with_events(run, failed, {"event": "absent", "round": 3, "clients": {"home": "not there"}})
    del run.result.baseline["shop"]
    run.result.baseline["road"]["semseg"]["miou"] = 0.0
    return single_sections(run)


def several(folder):
    """Local, a method with one seed, and one with two; and the tables of twins."""
    runs = [made_run(folder / "local", "local"), made_run(folder / "fedavg", "matfl_voting", better=0.9)]
    runs += [made_run(folder / str(seed), better=1.1 + seed, seed=seed) for seed in (0, 1)]
    vars(runs[0])["result"] = runs[0].outcome.model_copy(update={"origin": ORIGIN})
    alone = with_twin(made_run(folder / "twins" / "local", "local"), delta_m=None, delta_m_by_client=None)
    ours = with_twin(made_run(folder / "twins" / "ours", "fedavg"), delta_m=5.0, delta_m_by_client=20.0)
    compared = [gather(runs), gather([alone, ours])]
    tables = [layout(comparison) for comparison in compared for layout in (to_markdown, to_latex)]
    return [*several_sections(runs), Section("Files of tables", tables)]


SECTIONS = {
    "complete": complete,
    "with-faults": with_faults,
    "unfinished": lambda folder: single_sections(made_run(folder, finished=False)),
    "twins": lambda folder: single_sections(with_twin(made_run(folder), delta_m=5.0, delta_m_by_client=20.0)),
    "crowd": lambda folder: single_sections(crowded_run(folder, 60, rounds=2)),
    "several": several,
}


def page_text(sections):
    """All that sections say, with an empty line after each block."""
    lines = []
    for section in sections:
        lines += [f"{section.id.upper()}  {', '.join(section.legend)}", ""]
        for block in section.blocks:
            lines += [*filter(None, lines_of(block)), ""]
    return "\n".join(lines)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_page_says_the_same_as_before(name, tmp_path):
    assert page_text(SECTIONS[name](tmp_path)) == (PAGES / f"{name}.txt").read_text("utf-8")


if __name__ == "__main__":
    for name, sections in SECTIONS.items():
        with TemporaryDirectory() as folder:
            (PAGES / f"{name}.txt").write_text(page_text(sections(Path(folder))), "utf-8")
