"""`fedhca2 data` and `fedhca2 new`: render, check and view data sets, and create a project to start from."""

import re
import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fedhca2.cli.app import open_console
from fedhca2.cli.groups import LayoutName
from fedhca2.config import suggest
from fedhca2.configs import built_in_file
from fedhca2.data import Dataset, Split
from fedhca2.data.check import ARCHIVES, check_data, contact_sheet, kind_of
from fedhca2.data.check import check as check_archive
from fedhca2.data.rendered import write_scenes
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.reports.pictures import save_picture
from fedhca2.tasks import TASKS, TaskSet
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import counted


def new(folder: Path, table: bool) -> None:
    """Create a small project to start from: data, experiment and README."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(folder, "expected a new or empty folder, got one with files in it")
    templates = files("fedhca2") / "cli" / "templates"
    kind, name = "table" if table else "images", folder.resolve().name
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._") or "project"  # as experiments may be called
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((templates / kind).iterdir(), key=lambda file: file.name):
        text = file.read_text("utf-8").replace('"NAME"', f'"{plain}"').replace("NAME", name)
        write_whole(folder / file.name.removesuffix(".txt"), text.encode(), ORDINARY)
        typer.echo(folder / file.name.removesuffix(".txt"))
    typer.echo(f"Next: cd {shlex.quote(str(folder))} && fedhca2 run experiment.yaml")


def scenes(layout: LayoutName, root: Path, count: int, val: int | None, size: str, seed: int) -> None:
    """Render scenes and write them in the folder layout of one of the papers' archives."""
    console = open_console()
    height, width = _height_and_width(size)
    val = val or max(count // 4, 1)
    with _bar(console, "writing") as progress:
        write_scenes(layout, root, count, val, (height, width), seed, progress)
    console.print(f"{count} training and {counted(val, 'validation image')} in {root}", highlight=False)


def check(root: Path, layout: LayoutName | None) -> None:
    """Read every image and label, and report the contents and any problems; the exit code is 1 if there are some."""
    console = open_console(soft_wrap=True)
    experiment = Experiment.load(root) if _is_experiment(root) else None
    with _bar(console, "reading") as progress:
        if experiment is not None:
            tasks = experiment.task_set
            reports = [check_data(name, data, progress, tasks) for name, data in experiment.data.items()]
        else:
            reports = [check_archive(root, layout or kind_of(root), progress)]
    for line in [line for report in reports for line in report.lines()]:
        console.print(line, highlight=False, markup=False)
    good = all(report.ok for report in reports)
    if good and experiment is not None:
        blank = experiment.blank  # needs no initial weights
        assign_shards(blank, open_data(blank))  # raises UserError if there are too few images
    console.print("No problems found" if good else "Problems found", style="green" if good else "red")
    if not good:
        raise typer.Exit(1)


def info(root: Path, layout: LayoutName | None, count: int, split: Split, out: Path | None, name: str | None) -> None:
    """Paint a few samples with their labels into one picture for each data set."""
    console = open_console(soft_wrap=True)
    opened, tasks = _open(root, split, layout, name)
    sheets = {each: contact_sheet(samples, count, tasks) for each, samples in opened.items()}
    picture = out or Path(f"{root.stem if _is_experiment(root) else root.resolve().name}.png")
    for each, samples in opened.items():
        path = picture.with_stem(f"{picture.stem}-{each}") if len(opened) > 1 else picture
        save_picture(sheets[each], path)
        labels = ", ".join(samples.labels)
        console.print(f"{each}: {counted(len(samples), 'image')} in {split}, with labels for {labels}", highlight=False)
        console.print(f"picture: {path}", highlight=False)


def _open(
    root: Path, split: Split, layout: LayoutName | None, name: str | None
) -> tuple[Mapping[str, Dataset], TaskSet]:
    """A split of the data sets to paint, by name, and the tasks that they may have labels for."""
    if not _is_experiment(root):
        return {root.resolve().name: ARCHIVES[layout or kind_of(root)](root, split)}, TASKS
    experiment = Experiment.load(root)
    if name is not None and name not in experiment.data:
        raise UserError("--name", f"expected one of the data sets, got {name!r}. {suggest(name, experiment.data)}")
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
