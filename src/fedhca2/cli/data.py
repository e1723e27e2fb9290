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
    from fedhca2.data import DataConfig, Dataset, Split
    from fedhca2.experiment import Experiment
    from fedhca2.tasks import TaskSet

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

        experiment = _experiment(root) if _is_experiment(root) else None
        with _bar(console, "reading") as progress:
            if experiment is not None:
                known = experiment.task_set
                reports = [check_data(name, data, progress, known) for name, data in experiment.data.items()]
            else:
                reports = [check_archive(root, _layout(root, layout).value, progress)]
    for line in [line for report in reports for line in report.lines()]:
        console.print(line, highlight=False, markup=False)
    good = all(report.ok for report in reports)
    if good and experiment is not None:
        with clear_errors():
            _deal(experiment)
    console.print("no faults found" if good else "faults found", style="green" if good else "red")
    if not good:
        raise typer.Exit(FOUND_SOMETHING)


@data.command()
def info(
    root: Root,
    layout: Kind = None,
    count: Annotated[int, typer.Option(min=1, help="Number of samples.")] = 6,
    split: Annotated[str, typer.Option(help="train or val.")] = "train",
    out: Annotated[
        Path | None,
        typer.Option(
            help="The picture to write, or of several data sets its name before theirs; by default ROOT's with .png."
        ),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Of an experiment's data sets, this one; all by default.")] = None,
) -> None:
    """Paint a few samples with their labels into one picture for each data set."""
    console = open_console(soft_wrap=True)
    if split not in ("train", "val"):
        raise typer.BadParameter(f"should be train or val, found {split}", param_hint="--split")
    with clear_errors():
        from fedhca2.data.check import contact_sheet
        from fedhca2.reports.pictures import save_picture

        opened, tasks = _opened(root, "train" if split == "train" else "val", layout, name)
        sheets = {each: contact_sheet(samples, count, tasks) for each, samples in opened.items()}
        picture = out or Path(f"{root.stem if _is_experiment(root) else root.resolve().name}.png")
        pictures = {
            each: picture.with_stem(f"{picture.stem}-{each}") if opened.keys() - {each} else picture for each in opened
        }
        for each, sheet in sheets.items():
            save_picture(sheet, pictures[each])
    for each, samples in opened.items():
        labels = ", ".join(samples.labels)
        console.print(f"{each}: {counted(len(samples), 'image')} to {split}, with {labels}", highlight=False)
        console.print(f"picture: {pictures[each]}", highlight=False)


def _opened(
    root: Path, split: "Split", layout: LayoutName | None, name: str | None
) -> "tuple[Mapping[str, Dataset], TaskSet]":
    """A split of the data sets to paint, by name, and the tasks that they may have labels for."""
    from fedhca2.data.check import ARCHIVES
    from fedhca2.errors import UserError
    from fedhca2.tasks import TASKS

    if not _is_experiment(root):
        return {root.resolve().name: ARCHIVES[_layout(root, layout).value](root, split)}, TASKS
    experiment = _experiment(root)
    chosen = {each: data for each, data in _chosen(experiment.data, name).items() if not data.are_arrays}
    if not chosen:
        raise UserError([f"{root}: should have images to paint, found arrays; `data check` reads them"])
    return {each: data.open(split, experiment.task_set) for each, data in chosen.items()}, experiment.task_set


def _is_experiment(root: Path) -> bool:
    from fedhca2.configs import embedded_file

    return root.suffix in (".yaml", ".yml") or (not root.exists() and embedded_file(str(root)) is not None)


def _experiment(root: Path) -> "Experiment":
    from fedhca2.experiment import Experiment

    return Experiment.load(root)


def _deal(experiment: "Experiment") -> None:
    """Divide the images, as a run does; raises UserError if that is not possible."""
    from fedhca2.experiment import assign_shards, open_data

    blank = experiment.blank  # of a model's initial weights, which are no data
    assign_shards(blank, open_data(blank))


def _chosen(data: "Mapping[str, DataConfig]", name: str | None) -> "Mapping[str, DataConfig]":
    """The data set of this name, or without a name all of them."""
    from fedhca2.config import suggest
    from fedhca2.errors import UserError

    if name is None:
        return data
    if name not in data:
        raise UserError([f"--name: expected one of the data sets, got {name!r}. {suggest(name, data)}"])
    return {name: data[name]}


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
