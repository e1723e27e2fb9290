"""`fedhca2 run`, `resume`, `watch`, `runs` and `new`: train, see how far runs are, and start a project."""

import re
import shlex
from contextlib import nullcontext
from importlib.resources import files
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text
from typer import Argument, Option

from fedhca2.cli import lazy, options
from fedhca2.cli.app import app, command, open_console, print_json
from fedhca2.errors import UserError
from fedhca2.run_folder.folder import PAGE, default_folder, in_use
from fedhca2.whole_files import ORDINARY, require_empty, write_whole
from fedhca2.words import counted

if TYPE_CHECKING:
    from fedhca2.run_folder.reader import RunFiles
    from fedhca2.run_folder.result import Result

Track = Annotated[
    list[str] | None,
    options.Unset(
        metavar="NAME=TARGET",
        help="Log metrics to a tracker; repeatable: tensorboard=DIR, mlflow=DIR or URL, wandb=PROJECT, "
        "FILE.py:CLASS=TARGET.",
        autocompletion=options.complete_trackers,
    ),
]


@command(app, panel="Run")
def run(
    config: options.ExperimentName = "demo",
    overrides: options.Overrides = None,
    out: options.RunOut = None,
    baseline: Annotated[
        Path | None,
        options.Unset(
            help="Folder of a finished run of `local` to compare with.", autocompletion=options.complete_runs
        ),
    ] = None,
    engine: Annotated[
        Literal["in-process", "flower-local", "flower-ray"],
        Option(help="How to run the clients: in this process, one Flower process each, or Flower's Ray simulation."),
    ] = "in-process",
    track: Track = None,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Validate only: print the resolved settings, clients, traffic and memory.")
    ] = False,
    allow_code: options.AllowCode = None,
    trivial: options.Trivial = False,
    as_json: options.Json = False,
) -> None:
    """Train a federation and print what each client gained.

    Example: `fedhca2 run demo --set rounds=5 --out runs/first`
    """
    experiment = lazy.experiment.Experiment.load(config, overrides or [])
    folder, console = out or default_folder(experiment.name), open_console(stderr=as_json)
    with lazy.tracking.Trackers(folder, track or []) as trackers:
        if not dry_run:
            with lazy.console.ConsoleWatcher(console) as shown:
                watcher = lazy.records.Watchers(trackers, shown)
                result = lazy.runs.run_function(engine)(experiment, folder, watcher=watcher, baseline=baseline)
            conclude(console, result, folder, as_json, trivial=trivial)
            return
        lazy.run.check_new(experiment, folder, baseline)
        if engine == "in-process":
            lazy.engine.check_in_process(experiment)
        planned = lazy.forecast.forecast(experiment)
    if as_json:
        print_json({"config": experiment.to_dict(), **planned.to_dict()})
    else:
        typer.echo(experiment.to_yaml())
        open_console(highlight=False).print(lazy.tables.forecast_summary(experiment, planned))


@command(app, panel="Run")
def resume(
    run: Annotated[Path, options.RunFolder(help="Folder of the run.")],
    overrides: options.Overrides = None,
    track: Track = None,
    allow_code: options.AllowCode = None,
    as_json: options.Json = False,
) -> None:
    """Continue an interrupted run from its last checkpoint."""
    console = open_console(stderr=as_json)
    with lazy.tracking.Trackers(run, track or []) as trackers:
        with lazy.console.ConsoleWatcher(console) as shown:
            watcher = lazy.records.Watchers(trackers, shown)
            result = lazy.runs.resume_function(run)(run, watcher=watcher, overrides=overrides)
        conclude(console, result, run, as_json)


@command(app, panel="Run")
def watch(
    run: Annotated[Path, options.RunFolder(help="Folder of a run or comparison, finished or not.")],
    once: Annotated[bool, Option("--once", help="Show the current state and exit.")] = False,
    track: Track = None,
    allow_code: options.AllowCode = None,
    as_json: options.Json = False,
) -> None:
    """Follow a run or comparison until it ends."""
    console, begun = open_console(stderr=as_json), lazy.reader.RunFiles(run).begun
    if not begun and lazy.comparison_runs.find_runs(run):
        if track:
            raise UserError(f"--track {track[0]}", f"expected the folder of one run, got a comparison: {run}")
        finished = _watch_comparison(console, run, once)
    else:
        finished = _watch_run(console, lazy.reader.RunFiles.open(run), once, track)
    if as_json:
        print_json([listed.to_dict() for listed in lazy.listing.list_runs(run)])
    if not finished and not once:
        again = shlex.join(["fedhca2", "resume", str(run)]) if begun else "the same `fedhca2 compare`"
        typer.echo(f"not finished, and no process is working on it; continue with: {again}", err=True)
        raise typer.Exit(1)


@command(app, panel="Run")
def runs(
    folder: options.RunsFolder = Path("runs"), allow_code: options.AllowCode = None, as_json: options.Json = False
) -> None:
    """List runs with their method, progress, Δm and state."""
    runs = lazy.listing.list_runs(folder)
    if as_json:
        print_json([run.to_dict() for run in runs])
    else:
        open_console(highlight=False).print(lazy.tables.runs_table(runs, folder), soft_wrap=not runs)


@command(app, panel="Run")
def new(
    folder: Annotated[Path, Argument(help="New folder to write to.")],
    table: Annotated[bool, Option("--table", help="Use rows of measurements instead of images.")] = False,
) -> None:
    """Create a small project to start from: data, experiment and README."""
    require_empty(folder)
    templates = files("fedhca2") / "cli" / "templates"
    kind, name = "table" if table else "images", folder.resolve().name
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-._") or "project"  # as experiments may be called
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted((templates / kind).iterdir(), key=lambda file: file.name):
        text = file.read_text("utf-8").replace('"NAME"', f'"{plain}"').replace("NAME", name)
        write_whole(folder / file.name.removesuffix(".txt"), text.encode(), ORDINARY)
        typer.echo(folder / file.name.removesuffix(".txt"))
    typer.echo(f"Next: cd {shlex.quote(str(folder))} && fedhca2 run experiment.yaml")


def conclude(console: Console, result: "Result", folder: Path, as_json: bool = False, *, trivial: bool = False) -> None:
    """Print the outcome of a run; the exit code is 3 if every client failed."""
    run = lazy.reader.RunFiles.open(folder)
    console.print(lazy.tables.result_table(result, run.task_set, run.kinds, trivial=trivial))
    console.print(lazy.tables.conclusion(result, run.task_set))
    for sentence in lazy.transfer.transfer_sentences(run)[:1]:
        console.print(Text(sentence))
    for client, faults in result.skipped.items():
        console.print(Text(f"{client}: skipped {counted(len(faults), 'unreadable file')}, such as {faults[0]}"))
    for client, why in result.missing.items():
        console.print(Text(f"{client} has no final scores: {why}", "yellow"))
    if result.privacy is not None:
        spent, bound = result.privacy, result.privacy["dp_accounting"]
        audit = "to check it: pip install 'fedhca2[privacy]'" if bound is None else f"dp-accounting: {bound:.4g}"
        cost = f"ε = {spent['epsilon']:.4g} at δ = {spent['delta']:g} after at most"
        about = f"{cost} {counted(spent['updates'], 'update')} of a client ({audit})"
        console.print(f"client-level differential privacy: {about}", highlight=False)
    console.print(f"{result.seconds:.0f} s for {result.method}; all files are in {folder}/", highlight=False)
    draw_page(console, [run], folder)
    if as_json:
        print_json({"folder": str(folder), **result.to_dict()})
    if run.everyone_failed:
        message = f"all clients failed in the last round, so the scores mean nothing; see {run.events_file}"
        typer.echo(f"error: {folder}: {message}", err=True)
        raise typer.Exit(3)


def draw_page(console: Console, runs: list["RunFiles"], folder: Path) -> None:
    """Write report.html into a folder and print its path."""
    console.print(f"Report: {lazy.write.write_page(runs, folder / PAGE)}", highlight=False, soft_wrap=True)


def _watch_run(console: Console, files: "RunFiles", once: bool, track: list[str] | None) -> bool:
    """Show a run, and send its numbers where requested, until no process works on it; whether it is finished."""
    with lazy.tracking.Trackers(files.path, track or []) as trackers:
        board = lazy.console.LiveStatus(files)
        trackers.start()
        with Live(board, console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
            for events in lazy.console.follow(files.path, wait=not once):
                for event in events:
                    board.add(event)
                    if event["event"] == "round" and not live and not once:
                        console.print(board.state, soft_wrap=True)
                trackers.send(events)
                if live:
                    live.refresh()
        if not live:
            console.print(board)
    if trackers.failed:
        raise typer.Exit(1)
    return files.finished


def _watch_comparison(console: Console, folder: Path, once: bool) -> bool:
    """Show the runs of a comparison until no process works on it; whether all that have begun are finished."""
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            ended = once or not in_use(folder)  # read first: nothing is written after it
            runs = [lazy.listing.describe_run(path) for path in lazy.comparison_runs.find_runs(folder)]
            table = lazy.tables.runs_table(runs, folder)
            if live:
                live.update(table, refresh=True)
            if ended:
                break
            sleep(lazy.console.PAUSE_S)
    if not live:
        console.print(table)
    return all(run.state in ("finished", "failed") for run in runs)
