"""`fedhca2 data`: write, check and view data sets."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors, open_console
from fedhca2.words import counted

if TYPE_CHECKING:
    from fedhca2.data import DataConfig, Split
    from fedhca2.experiment import Experiment

FOUND_SOMETHING = 1

data = typer.Typer(help="Write, check and view data sets.", no_args_is_help=True, suggest_commands=False)
app.add_typer(data, name="data")


class LayoutName(StrEnum):
    """A folder layout."""

    PASCAL_CONTEXT = "pascal_context"
    NYUD = "nyud"


Root = Annotated[Path, typer.Argument(help="A data set's folder, or an experiment, for all of its data sets.")]
Kind = Annotated[LayoutName | None, typer.Option("--layout", help="Its layout; detected by default.")]


@data.command()
def scenes(
    layout: Annotated[LayoutName, typer.Option(help="Outdoor scenes as PASCAL-Context, indoor ones as NYUD-v2.")],
    root: Annotated[Path, typer.Option(help="A new or empty folder.")],
    count: Annotated[int, typer.Option(min=1, help="Number of training images.")] = 100,
    val: Annotated[
        int | None, typer.Option(min=1, help="Number of validation images; a quarter as many by default.")
    ] = None,
    size: Annotated[str, typer.Option(help="Height and width, as in 256 or 448x576; multiples of 32.")] = "256",
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenes.")] = 0,
) -> None:
    """Render scenes and write them in the folder layout of one of the papers' archives."""
    console = open_console()
    height, width = _height_and_width(size)
    with clear_errors():
        from fedhca2.data.archive_writer import write_scenes

        wanted = val or max(count // 4, 1)
        with _bar(console, "writing") as progress:
            write_scenes(layout.value, root, count, wanted, (height, width), seed, progress)
    console.print(f"{count} training and {counted(wanted, 'validation image')} in {root}", highlight=False)


@data.command()
def check(root: Root, layout: Kind = None) -> None:
    """Read every image and label, and report the contents and any faults; the exit code is 1 if there are faults."""
    console = open_console(soft_wrap=True)
    with clear_errors():
        from fedhca2.data.check import check as check_archive
        from fedhca2.data.check import check_data

        with _bar(console, "reading") as progress:
            if _is_experiment(root):
                found = _experiment(root)
                reports = [check_data(name, data, progress, found.task_set) for name, data in found.data.items()]
            else:
                reports = [check_archive(root, _layout(root, layout).value, progress)]
    for line in [line for report in reports for line in report.lines()]:
        console.print(line, highlight=False, markup=False)
    good = all(report.ok for report in reports)
    console.print("no faults found" if good else "faults found", style="green" if good else "red")
    if not good:
        raise typer.Exit(FOUND_SOMETHING)


@data.command()
def info(
    root: Root,
    layout: Kind = None,
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 6,
    split: Annotated[str, typer.Option(help="train or val.")] = "train",
    out: Annotated[Path | None, typer.Option(help="The picture to write; by default ROOT's name with .png.")] = None,
    name: Annotated[str | None, typer.Option(help="Of an experiment's data sets, this one.")] = None,
) -> None:
    """Paint a few samples with their labels into one picture."""
    console = open_console(soft_wrap=True)
    if split not in ("train", "val"):
        raise typer.BadParameter(f"should be train or val, found {split}", param_hint="--split")
    with clear_errors():
        from fedhca2.data.check import ARCHIVES, contact_sheet
        from fedhca2.data.file_errors import FileError
        from fedhca2.errors import UserError
        from fedhca2.reports.pictures import save_picture
        from fedhca2.tasks import TASKS

        wanted: Split = "train" if split == "train" else "val"
        try:
            if _is_experiment(root):
                found = _experiment(root)
                tasks, chosen = found.task_set, _chosen(found.data, name)
                if chosen.are_arrays:
                    raise UserError([f"{root}: should have images to paint, found arrays; `data check` reads them"])
                samples = chosen.open(wanted, tasks)
            else:
                tasks = TASKS
                samples = ARCHIVES[_layout(root, layout).value](root, wanted)
            sheet = contact_sheet(samples, count, tasks)
        except FileError as error:
            raise UserError([str(error)]) from None
        picture = out or Path(f"{root.stem if _is_experiment(root) else root.resolve().name}.png")
        save_picture(sheet, picture)
    console.print(
        f"{root}: {counted(len(samples), 'image')} to {split}, with {', '.join(samples.labels)}", highlight=False
    )
    console.print(f"picture: {picture}", highlight=False)


def _is_experiment(root: Path) -> bool:
    from fedhca2.configs import embedded_file

    return root.suffix in (".yaml", ".yml") or (not root.exists() and embedded_file(str(root)) is not None)


def _experiment(root: Path) -> "Experiment":
    from fedhca2.experiment import Experiment

    return Experiment.load(root)


def _chosen(data: "Mapping[str, DataConfig]", name: str | None) -> "DataConfig":
    from fedhca2.config import suggest
    from fedhca2.errors import UserError

    if (name or len(data) > 1) and name not in data:
        raise UserError([f"--name: should be one of the data sets, found {name}. {suggest(str(name), data)}"])
    return data[name] if name else next(iter(data.values()))


def _height_and_width(size: str) -> tuple[int, int]:
    numbers = size.lower().replace("×", "x").split("x")
    if len(numbers) > 2 or not all(number.isdigit() and int(number) >= 32 for number in numbers):
        raise typer.BadParameter(f"should be like 256 or 448x576, found {size}", param_hint="--size")
    return int(numbers[0]), int(numbers[-1])


def _layout(root: Path, layout: LayoutName | None) -> LayoutName:
    from fedhca2.data.check import kind_of
    from fedhca2.errors import UserError

    if layout is not None:
        return layout
    try:
        return LayoutName(kind_of(root))
    except ValueError as error:
        raise UserError([str(error)]) from None


@contextmanager
def _bar(console: Console, verb: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar that disappears when it is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
