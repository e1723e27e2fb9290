"""`fedhca2 report`."""

from pathlib import Path
from typing import Annotated

import typer

from fedhca2.cli.app import app, clear_errors


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="One run's folder, or several to see side by side, or a comparison's.")
    ],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The page; by default report.html in the first run's folder.")
    ] = None,
) -> None:
    """Make a page that shows what happened: one HTML file that needs no network."""
    with clear_errors():
        from fedhca2.federation.cells import known_cells
        from fedhca2.reports.page import write_page
        from fedhca2.reports.run_files import RunFiles

        found = [cell for run in runs for cell in known_cells(run) or [run]]
        typer.echo(write_page([RunFiles.open(run) for run in found], output or runs[0] / "report.html"))
