"""From sections to an HTML file."""

import json
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader

from fedhca2.errors import UserError
from fedhca2.reports.page.blocks import Section
from fedhca2.reports.page.several import several_sections
from fedhca2.reports.page.single import single_sections
from fedhca2.run_folder.reader import RunFiles
from fedhca2.version import __version__


class NoPlotly(UserError):  # noqa: N818
    """The page cannot be drawn here."""

    def __init__(self) -> None:
        super().__init__(["a page needs another package: pip install plotly"])


def write_page(runs: Sequence[RunFiles], path: Path) -> Path:
    """Write the page of one run, or of several side by side."""
    if not runs:
        raise UserError(["a page should have a run to show, found none"])
    names = list(dict.fromkeys(str(run.config["name"]) for run in runs))
    methods = list(dict.fromkeys(run.method for run in runs))
    sections = single_sections(runs[0]) if len(runs) == 1 else several_sections(list(runs))
    html = render(f"{', '.join(names)}: {', '.join(methods)}", sections)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, "utf-8")
    return path


def render(title: str, sections: Sequence[Section]) -> str:
    """The whole page as text."""
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
