"""`fedhca2 evaluate`, `predict`, `picture` and `export`: use trained models."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import AllowCode, Json, app, clear_errors, console_beside, print_json
from fedhca2.cli.completion import FinishedRun

IMAGES = {"val": "validation", "train": "training"}


@app.command()
def evaluate(
    run: FinishedRun,
    split: Annotated[str, typer.Option(help="val, or train for each client's training images.")] = "val",
    thresholds: Annotated[
        int, typer.Option(min=1, max=254, help="Number of thresholds for edges; the papers use 99.")
    ] = 99,
    client: Annotated[str | None, typer.Option(help="Only this client.")] = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Re-evaluate the models that a run saved, and write RUN/evaluation-SPLIT[-CLIENT].json.

    If the run trained its Local baseline, that is evaluated too, and the two are compared.
    """
    console = console_beside(as_json)
    if split not in IMAGES:
        raise typer.BadParameter(f"should be train or val, found {split}", param_hint="--split")
    with clear_errors():
        from fedhca2.deployment.trained import Evaluation, evaluated
        from fedhca2.reports.tables import conclusion, result_table
        from fedhca2.run_folder.reader import RunFiles
        from fedhca2.run_folder.writer import write_evaluation

        wanted = Evaluation("train" if split == "train" else "val", thresholds, client)
        with _progress() as show:
            result = evaluated(run, wanted, lambda name: show(f"evaluating {name}"))
        evaluation = {
            "split": split,
            "thresholds": thresholds,
            "clients": result.clients,
            "baseline": result.baseline,
            "delta_m": result.delta_m,
            "delta_m_by_client": result.delta_m_by_client,
        }
        written = write_evaluation(run, split, client, evaluation)
    tasks = RunFiles(run).task_set
    console.print(result_table(result, tasks))
    console.print(conclusion(result, tasks))
    console.print(f"on the {IMAGES[split]} images; the scores are in {written}", highlight=False, soft_wrap=True)
    if as_json:
        print_json(evaluation)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show what is being done on standard error: in a line that changes, or in a pipe as one line after another."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield partial(typer.echo, err=True)
        return
    with console.status("opening the data") as status:
        yield status.update


@app.command()
def predict(
    run: FinishedRun,
    images: Annotated[list[Path], typer.Argument(help="Image files of any size, and folders of them.")],
    client: Annotated[str, typer.Option(help="The client whose model to use.")],
    out: Annotated[Path, typer.Option("--out", "--output", "-o", help="The folder to write to.")] = Path("predictions"),
    raw: Annotated[bool, typer.Option("--raw", help="Also write the predictions as .npy arrays.")] = False,
    allow_code: AllowCode = None,
) -> None:
    """Predict all tasks of a client; write a coloured map and an overlay, or a picture of a vector, for each."""
    with clear_errors():
        from fedhca2.deployment import Trained
        from fedhca2.deployment.trained import predict_files

        for path in predict_files(Trained.open(run, client), images, out, raw=raw):
            typer.echo(path)


@app.command()
def picture(
    run: FinishedRun,
    client: Annotated[str, typer.Option(help="The client whose samples to paint.")],
    out: Annotated[
        Path | None,
        typer.Option("--out", "--output", "-o", help="The PNG file to write; by default CLIENT-SAMPLE.png."),
    ] = None,
    sample: Annotated[int, typer.Option(help="Number of the sample, from 0.")] = 0,
    tile: Annotated[int, typer.Option(help="Width of each tile in pixels.", min=16)] = 192,
    allow_code: AllowCode = None,
) -> None:
    """Paint a client's sample: input, label, and the predictions before and after training."""
    with clear_errors():
        from fedhca2.reports.pictures import samples_panel, save_picture
        from fedhca2.run_folder.reader import RunFiles

        panel = samples_panel(RunFiles.open(run), client, sample, tile)
        path = out or Path(f"{client}-{sample}.png")
        save_picture(panel, path)
    typer.echo(path)


class Format(StrEnum):
    """The file formats of an exported model."""

    safetensors = "safetensors"
    onnx = "onnx"
    torch_export = "torch-export"


@app.command()
def export(
    run: FinishedRun,
    client: Annotated[str, typer.Option(help="The client whose model to export.")],
    format: Annotated[Format, typer.Option(help="The file format.")] = Format.onnx,
    out: Annotated[Path, typer.Option("--out", "--output", "-o", help="The folder to write to.")] = Path("exported"),
    size: Annotated[
        tuple[int, int] | None, typer.Option(help="Height and width of the input; by default those of training.")
    ] = None,
    allow_code: AllowCode = None,
) -> None:
    """Write a client's model for other programs, with a card that describes inputs and outputs."""
    with clear_errors():
        from fedhca2.deployment import Trained
        from fedhca2.deployment.export import export as export_model

        for path in export_model(Trained.open(run, client), format.value, out, size):
            typer.echo(path)
