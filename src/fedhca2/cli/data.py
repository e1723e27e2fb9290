"""`fedhca2 data`: render, check and view data sets."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from typer import Argument, Option

from fedhca2.cli import lazy, options
from fedhca2.cli.app import command, new_group, open_console
from fedhca2.configs import built_in_file
from fedhca2.errors import UserError
from fedhca2.words import counted

if TYPE_CHECKING:
    from fedhca2.data import Dataset
    from fedhca2.tasks import TaskSet

data = new_group("data", "Data", "Check, view and render data sets.")

Root = Annotated[Path, Argument(help="Folder of a data set, or an experiment for all its data sets.")]
LayoutName = Literal["pascal_context", "nyud"]
Layout = Annotated[LayoutName | None, Option(help="Layout of the folder.", show_default="detected")]


@command(data)
def scenes(
    root: Annotated[Path, Argument(help="New or empty folder to write to.")],
    layout: Annotated[LayoutName, Option(help="Outdoor scenes as PASCAL-Context, or indoor ones as NYUD-v2.")],
    count: Annotated[int, Option(min=1, help="Training images.")] = 100,
    val: Annotated[
        int | None, Option(min=1, help="Validation images.", show_default="a quarter of the training images")
    ] = None,
    size: Annotated[str, Option(help="Height and width in multiples of 32: 256 or 448x576.")] = "256",
    seed: Annotated[int, Option(min=0, help="Seed of the scenes.")] = 0,
) -> None:
    """Render scenes as a PASCAL-Context or NYUD-v2 folder."""
    console = open_console()
    height, width = _height_and_width(size)
    val = val or max(count // 4, 1)
    with _bar(console, "writing") as progress:
        lazy.rendered.write_scenes(layout, root, count, val, (height, width), seed, progress)
    console.print(f"{count} training and {counted(val, 'validation image')} in {root}", highlight=False)


@command(data)
def check(root: Root, layout: Layout = None) -> None:
    """Read every image and label, and report problems; the exit code is 1 if there are any."""
    console = open_console(soft_wrap=True)
    experiment = lazy.experiment.Experiment.load(root) if _is_experiment(root) else None
    with _bar(console, "reading") as progress:
        if experiment is not None:
            tasks = experiment.task_set
            reports = [lazy.check.check_data(name, data, progress, tasks) for name, data in experiment.data.items()]
        else:
            reports = [lazy.check.check(root, layout or lazy.check.kind_of(root), progress)]
    for line in [line for report in reports for line in report.lines()]:
        console.print(line, highlight=False, markup=False)
    good = all(report.ok for report in reports)
    if good and experiment is not None:
        blank = experiment.blank  # needs no initial weights
        opened = lazy.experiment.open_data(blank)
        lazy.experiment.assign_shards(blank, opened)  # raises UserError if there are too few images
    console.print("No problems found" if good else "Problems found", style="green" if good else "red")
    if not good:
        raise typer.Exit(1)


@command(data)
def info(
    root: Root,
    layout: Layout = None,
    count: Annotated[int, Option(min=1, help="Samples to draw.")] = 6,
    split: Annotated[Literal["train", "val"], Option(help="Split to take them from.")] = "train",
    out: Annotated[
        Path | None,
        options.Out(
            help="PNG file to write; with several data sets, the name of each is added.",
            show_default="ROOT's name with .png",
        ),
    ] = None,
    name: Annotated[
        str | None, Option(help="Data set to show, if the experiment has several.", show_default="all")
    ] = None,
) -> None:
    """Draw a few samples with their labels, one picture per data set."""
    console = open_console(soft_wrap=True)
    opened, tasks = _open(root, split, layout, name)
    sheets = {each: lazy.check.contact_sheet(samples, count, tasks) for each, samples in opened.items()}
    picture = out or Path(f"{root.stem if _is_experiment(root) else root.resolve().name}.png")
    for each, samples in opened.items():
        path = picture.with_stem(f"{picture.stem}-{each}") if len(opened) > 1 else picture
        lazy.pictures.save_picture(sheets[each], path)
        labels = ", ".join(samples.labels)
        console.print(f"{each}: {counted(len(samples), 'image')} in {split}, with labels for {labels}", highlight=False)
        console.print(f"picture: {path}", highlight=False)


def _open(
    root: Path, split: Literal["train", "val"], layout: LayoutName | None, name: str | None
) -> tuple[Mapping[str, "Dataset"], "TaskSet"]:
    """A split of the data sets to paint, by name, and the tasks that they may have labels for."""
    if not _is_experiment(root):
        archive = lazy.check.ARCHIVES[layout or lazy.check.kind_of(root)]
        return {root.resolve().name: archive(root, split)}, lazy.tasks.TASKS
    experiment = lazy.experiment.Experiment.load(root)
    if name is not None and name not in experiment.data:
        hint = lazy.config.suggest(name, experiment.data)
        raise UserError("--name", f"expected one of the data sets, got {name!r}. {hint}")
    named = {each: data for each, data in experiment.data.items() if name in (None, each)}
    chosen = {each: data for each, data in named.items() if not data.are_arrays}
    if not chosen:
        raise UserError(root, "expected images to paint, got arrays; `data check` reads them")
    return {each: data.open(split, experiment.task_set) for each, data in chosen.items()}, experiment.task_set


def _is_experiment(root: Path) -> bool:
    return root.suffix in (".yaml", ".yml") or (not root.exists() and built_in_file(str(root)) is not None)


def _height_and_width(size: str) -> tuple[int, int]:
    numbers = size.lower().replace("×", "x").split("x")
    if len(numbers) > 2 or not all(number.isdigit() and int(number) >= 32 for number in numbers):
        raise typer.BadParameter(f"expected a size like 256 or 448x576, got {size}", param_hint="--size")
    return int(numbers[0]), int(numbers[-1])


@contextmanager
def _bar(console: Console, verb: str) -> Iterator[Callable[[int, int], None]]:
    """A progress bar that disappears when it is done."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(verb, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
