"""`fedhca2 evaluate`, `predict`, `picture` and `export`: use the models of a finished run."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console
from typer import Argument, Option

from fedhca2.cli import lazy, options
from fedhca2.cli.app import app, command, open_console, print_json
from fedhca2.errors import UserError
from fedhca2.records import Records

FinishedRun = Annotated[Path, options.RunFolder(help="Folder of a finished run.")]


@command(app, panel="Use")
def evaluate(
    run: FinishedRun,
    split: Annotated[
        Literal["train", "val", "test"] | None,
        Option(help="Images to score: validation, test or training images.", show_default="those of the run's result"),
    ] = None,
    thresholds: Annotated[
        int, Option(min=1, max=254, help="Number of thresholds for edge scores; the papers use 99.")
    ] = 99,
    client: Annotated[str | None, options.Client(help="Client to evaluate.", show_default="all")] = None,
    allow_code: options.AllowCode = None,
    trivial: options.Trivial = False,
    as_json: options.Json = False,
) -> None:
    """Evaluate a run's saved models again.

    Writes RUN/evaluation-SPLIT.json, or RUN/evaluation-SPLIT-CLIENT.json for one client.

    A local baseline that the run trained is evaluated too, for comparison.
    """
    console = open_console(stderr=as_json)
    with _progress() as show:
        result = lazy.trained.evaluate(run, lambda name: show(f"evaluating {name}"), split, thresholds, client)
    scores = {key: getattr(result, key) for key in ("clients", "baseline", "delta_m", "delta_m_by_client")}
    evaluation = {"split": result.split, "thresholds": thresholds, **scores}
    written = lazy.writer.write_evaluation(run, result.split, client, evaluation)
    tasks = lazy.reader.RunFiles(run).task_set
    images = {"val": "validation", "train": "training", "test": "test"}[result.split]
    console.print(lazy.tables.result_table(result, tasks, trivial=trivial))
    console.print(lazy.tables.conclusion(result, tasks))
    console.print(f"Scored on the {images} images; scores are in {written}", highlight=False, soft_wrap=True)
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


@command(app, panel="Use")
def predict(
    run: FinishedRun,
    images: Annotated[list[Path], Argument(help="Image files of any size, or folders of them at any depth.")],
    client: Annotated[str, options.Client(help="Client whose model to use.")],
    out: Annotated[Path, options.Out(help="Folder to write to.")] = Path("predictions"),
    raw: Annotated[bool, Option("--raw", help="Also write the predictions as .npy arrays.")] = False,
    as_json: options.Json = False,
    as_csv: Annotated[bool, Option("--csv", help="Print CSV, a row for each image and task.")] = False,
    allow_code: options.AllowCode = None,
) -> None:
    """Apply a client's model to images: print the answers and save the predictions as pictures.

    Example: `fedhca2 predict runs/first photos/ --client home`
    """
    if as_json and as_csv:
        raise UserError("--csv", "expected one format, got --json as well")
    records = lazy.trained.predict_files(lazy.trained.Trained.open(run, client), images, out, raw=raw)
    if as_json:
        print_json(records)
    elif as_csv:
        columns = ("image", "task", "answer", "value")
        typer.echo(Records({key: record[key] for key in columns} for record in records).to_csv(), nl=False)
    else:
        for record in records:
            typer.echo(f"{record['image']}  {record['task']}: {record['answer']}")
        typer.echo(f"Pictures are in {out}/")


@command(app, panel="Use")
def picture(
    run: FinishedRun,
    client: Annotated[str, options.Client(help="Client whose sample to draw.")],
    out: Annotated[Path | None, options.Out(help="PNG file to write.", show_default="CLIENT-SAMPLE.png")] = None,
    sample: Annotated[int, Option(help="Number of the sample, from 0.")] = 0,
    tile: Annotated[int, Option(help="Tile width in pixels.", min=16)] = 192,
    allow_code: options.AllowCode = None,
) -> None:
    """Draw a sample: input, label, and predictions before and after training."""
    panel = lazy.pictures.samples_panel(lazy.reader.RunFiles.open(run), client, sample, tile)
    path = out or Path(f"{client}-{sample}.png")
    lazy.pictures.save_picture(panel, path)
    typer.echo(path)


@command(app, panel="Use")
def export(
    run: FinishedRun,
    client: Annotated[str, options.Client(help="Client whose model to export.")],
    format: Annotated[Literal["safetensors", "onnx", "torch-export"], Option(help="File format.")] = "onnx",
    out: Annotated[Path, options.Out(help="Folder to write to.")] = Path("exported"),
    size: Annotated[
        tuple[int, int] | None,
        Option(metavar="HEIGHT WIDTH", help="Size of the input in pixels.", show_default="as in training"),
    ] = None,
    allow_code: options.AllowCode = None,
) -> None:
    """Export a client's model (ONNX, safetensors or torch.export) with a model card."""
    for path in lazy.export.export(lazy.trained.Trained.open(run, client), format, out, size):
        typer.echo(path)
