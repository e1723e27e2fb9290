"""`fedhca2 export`."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fedhca2.cli.app import app, clear_errors


class Format(StrEnum):
    """What a model can be written as."""

    safetensors = "safetensors"
    onnx = "onnx"
    torch_export = "torch-export"


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="The folder of a finished run.")],
    client: Annotated[str, typer.Option(help="Whose model.")],
    format: Annotated[Format, typer.Option(help="What kind of file.")] = Format.onnx,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write to.")] = Path("exported"),
    size: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width of the input; by default those of training.")
    ] = None,
) -> None:
    """Write a client's model for other programs, with a card that says what goes in and what comes out."""
    with clear_errors():
        from fedhca2.deployment import Trained
        from fedhca2.deployment.export import export as export_model

        for path in export_model(Trained.open(run, client), format.value, output, size):
            typer.echo(path)
