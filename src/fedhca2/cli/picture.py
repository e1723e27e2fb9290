"""`fedhca2 picture`."""

from pathlib import Path
from typing import Annotated

import typer

from fedhca2.cli.app import app, clear_errors


@app.command()
def picture(
    run: Annotated[Path, typer.Argument(help="A finished run's folder.")],
    client: Annotated[str, typer.Option(help="Whose samples.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The PNG file to write.")],
    sample: Annotated[int, typer.Option(help="Which of the kept samples, from 0.")] = 0,
    tile: Annotated[int, typer.Option(help="Width of each tile in pixels.", min=16)] = 192,
) -> None:
    """Paint a client's sample: input, label, and the predictions before and after training."""
    with clear_errors():
        from fedhca2.reports.pictures import samples_panel
        from fedhca2.reports.run_files import RunFiles

        panel = samples_panel(RunFiles.open(run), client, sample, tile)
        output.parent.mkdir(parents=True, exist_ok=True)
        panel.save(output)
