"""The report page that a command draws at its end."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from fedhca2.run_folder.reader import RunFiles


def draw_page(console: Console, runs: Sequence["RunFiles"], folder: Path) -> None:
    """Write report.html into a folder and print its path, or without plotly print how to draw it later."""
    from fedhca2.reports.page.write import NoPlotly, write_page
    from fedhca2.run_folder.names import PAGE

    try:
        page = write_page(runs, folder / PAGE)
    except NoPlotly as error:
        console.print(f"{error}; then: fedhca2 report {shlex.quote(str(folder))}", highlight=False, soft_wrap=True)
    else:
        console.print(f"Report: {page}", highlight=False, soft_wrap=True)
