"""`fedhca2 predict`."""

from pathlib import Path
from typing import Annotated

import typer

from fedhca2.cli.app import app, clear_errors


@app.command()
def predict(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    images: Annotated[list[Path], typer.Argument(help="Image files of any size.")],
    client: Annotated[str, typer.Option(help="Whose model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("predictions"),
    raw: Annotated[bool, typer.Option("--raw", help="Write the predictions as .npy arrays too.")] = False,
) -> None:
    """Predict all tasks of a client: a coloured map and an overlay for each image and task."""
    with clear_errors():
        from fedhca2.deployment import Trained
        from fedhca2.deployment.images import predict_files

        for path in predict_files(Trained.open(run, client), images, output, raw=raw):
            typer.echo(path)
