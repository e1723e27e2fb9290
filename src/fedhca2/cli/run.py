"""`fedhca2 run`, `resume` and `watch`: start, continue and follow runs."""

import shlex
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedhca2.cli.app import AllowCode, Json, app, clear_errors, console_beside, open_console, print_json
from fedhca2.cli.completion import ExperimentName, Overrides, run_folders, trackers
from fedhca2.cli.page import draw_page
from fedhca2.words import counted

Track = Annotated[
    list[str] | None,
    typer.Option(
        "--track",
        metavar="NAME=PLACE",
        help="Also send the numbers: tensorboard=DIR, mlflow=DIR-or-URL, wandb=PROJECT, or my.py:CLASS=PLACE.",
        autocompletion=trackers,
    ),
]


if TYPE_CHECKING:
    from fedhca2.experiment import Experiment
    from fedhca2.reports.tracking import Trackers
    from fedhca2.run_folder.reader import RunFiles
    from fedhca2.run_folder.records import Watcher
    from fedhca2.run_folder.result import Result

UNFINISHED = 1
EVERYONE_FAILED = 3
BY_SIGNAL = 128  # shells add this to the number of the signal that ended a process


@app.command()
def run(
    config: ExperimentName = "demo",
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; a new one under runs/ by default.")] = None,
    baseline: Annotated[
        Path | None, typer.Option(help="A finished run of 'local' to compare with.", autocompletion=run_folders)
    ] = None,
    engine: Annotated[
        Literal["in-process", "flower-local", "flower-ray"],
        typer.Option(
            help="Where clients run: in this process, in one process each over Flower, or in Flower's Ray simulation."
        ),
    ] = "in-process",
    track: Track = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Train and write nothing: print the resolved config, and each client's images, parts and bytes.",
        ),
    ] = False,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Train a federation and print what each client gained."""
    console = console_beside(as_json)
    with clear_errors(), stopped():
        from fedhca2.experiment import Experiment
        from fedhca2.run_folder.names import default_folder
        from fedhca2.runs import run_function

        experiment = Experiment.load(config, overrides or [])
        folder = out or default_folder(experiment.name)
        with tracked(folder, track) as trackers:
            if dry_run:
                _check(experiment, folder, engine, baseline)
                _show_forecast(experiment, as_json)
                return
            with watched(console, trackers) as watcher:
                result = run_function(engine)(experiment, folder, watcher=watcher, baseline=baseline)
            conclude(console, result, folder, as_json)


def _check(experiment: "Experiment", folder: Path, engine: str, baseline: Path | None) -> None:
    """Make the checks of a run that a forecast does not need."""
    from fedhca2.federation.in_process import check_in_process
    from fedhca2.federation.run import check_new

    check_new(experiment, folder, baseline)
    if engine == "in-process":
        check_in_process(experiment)


def _show_forecast(experiment: "Experiment", as_json: bool) -> None:
    from fedhca2.federation.forecast import forecast
    from fedhca2.reports.tables import forecast_summary

    planned = forecast(experiment)
    if as_json:
        print_json({"config": experiment.to_dict(), **planned.to_dict()})
    else:
        typer.echo(experiment.to_yaml())
        open_console(highlight=False).print(forecast_summary(experiment, planned))


@contextmanager
def tracked(run: Path, track: list[str] | None) -> Iterator["Trackers"]:
    """Open the requested trackers, send them the outcome at the end, and close them."""
    from fedhca2.reports.tracking import Trackers

    trackers = Trackers(run, track or [])
    try:
        yield trackers
    finally:
        trackers.finish()
        trackers.close()


@contextmanager
def watched(console: Console, trackers: "Trackers") -> Iterator["Watcher"]:
    """Show a run's progress, and send its numbers to trackers."""
    from fedhca2.reports.console import ConsoleWatcher
    from fedhca2.reports.tracking import Sending

    with ConsoleWatcher(console) as shown, Sending(shown, trackers) as watcher:
        yield watcher


@contextmanager
def stopped() -> Iterator[None]:
    """When a run is asked to stop, print how to resume it and exit with the signal's code."""
    from fedhca2.federation.stopping import Interrupted

    try:
        yield
    except Interrupted as interrupted:
        typer.echo(str(interrupted), err=True)
        raise typer.Exit(BY_SIGNAL + interrupted.signal) from None


def conclude(console: Console, result: "Result", folder: Path, as_json: bool = False) -> None:
    """Print the outcome of a run."""
    from fedhca2.reports.figures.transfer import transfer_sentences
    from fedhca2.reports.tables import conclusion, result_table
    from fedhca2.run_folder.reader import RunFiles

    files = RunFiles.open(folder)
    console.print(result_table(result, files.task_set, files.kinds))
    console.print(conclusion(result, files.task_set))
    for sentence in transfer_sentences(files)[:1]:
        console.print(Text(sentence))
    for client, faults in result.skipped.items():
        console.print(Text(f"{client}: skipped {counted(len(faults), 'unreadable file')}, such as {faults[0]}"))
    for client, why in result.missing.items():
        console.print(Text(f"{client} has no final scores: {why}", "yellow"))
    if result.privacy is not None:
        console.print(_privacy(result.privacy), highlight=False)
    console.print(f"{result.seconds:.0f} s for {result.method}; all files are in {folder}/", highlight=False)
    draw_page(console, [files], folder)
    if as_json:
        print_json({"folder": str(folder), **result.to_dict()})
    if files.everyone_failed:
        typer.echo(f"error: {folder}: every client failed in the last round, so the scores mean nothing", err=True)
        raise typer.Exit(EVERYONE_FAILED)


def _privacy(spent: Mapping[str, Any]) -> str:
    """Describe the privacy cost of the client that sent the most updates, with dp-accounting's figure."""
    bound = spent["dp_accounting"]
    audit = "to check it: pip install 'fedhca2[privacy]'" if bound is None else f"dp-accounting: {bound:.4g}"
    return (
        f"client-level differential privacy: ε = {spent['epsilon']:.4g} at δ = {spent['delta']:g} "
        f"after at most {counted(spent['updates'], 'update')} of a client ({audit})"
    )


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run's folder.", autocompletion=run_folders)],
    overrides: Overrides = None,
    track: Track = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Continue an interrupted run from its last checkpoint."""
    console = console_beside(as_json)
    with clear_errors(), stopped():
        from fedhca2.runs import resume_function

        with tracked(run, track) as trackers:
            with watched(console, trackers) as watcher:
                result = resume_function(run)(run, watcher=watcher, overrides=overrides)
            conclude(console, result, run, as_json)


@app.command()
def watch(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a run or of a comparison, finished or not.", autocompletion=run_folders),
    ],
    once: Annotated[bool, typer.Option("--once", help="Show the current state and exit.")] = False,
    track: Track = None,
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """Follow a run or a comparison in the terminal until it is finished or no process works on it."""
    console = console_beside(as_json)
    with clear_errors():
        from fedhca2.errors import UserError
        from fedhca2.federation.comparison_runs import known_runs
        from fedhca2.run_folder.listing import list_runs
        from fedhca2.run_folder.reader import RunFiles

        if not RunFiles(run).begun and known_runs(run):
            if track:
                raise UserError([f"--track {track[0]}: expected the folder of one run, got a comparison: {run}"])
            finished = _watch_comparison(console, run, once)
        else:
            finished = _watch_run(console, RunFiles.open(run), once, track)
        if as_json:
            print_json([listed.to_dict() for listed in list_runs(run)])
    if not finished and not once:
        again = shlex.join(["fedhca2", "resume", str(run)]) if RunFiles(run).begun else "the same `fedhca2 compare`"
        typer.echo(f"not finished, and no process is working on it; continue with: {again}", err=True)
        raise typer.Exit(UNFINISHED)


def _watch_run(console: Console, files: "RunFiles", once: bool, track: list[str] | None) -> bool:
    """Show a run, and send its numbers where requested, until no process works on it; whether it is finished."""
    from fedhca2.reports.console import LiveStatus
    from fedhca2.reports.tracking import follow

    with tracked(files.path, track) as trackers, ExitStack() as stack:
        board = LiveStatus(files)
        trackers.start()
        live = stack.enter_context(Live(board, console=console, auto_refresh=False)) if console.is_terminal else None
        for events in follow(files.path, wait=not once):
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
        raise typer.Exit(UNFINISHED)
    return files.finished


def _watch_comparison(console: Console, folder: Path, once: bool) -> bool:
    """Show the runs of a comparison until no process works on it; whether all that have begun are finished."""
    from fedhca2.reports.console import comparison_status
    from fedhca2.reports.tracking import PAUSE
    from fedhca2.run_folder.lock import in_use

    with ExitStack() as stack:
        live = stack.enter_context(Live(console=console, auto_refresh=False)) if console.is_terminal else None
        while True:
            ended = once or not in_use(folder)  # read first: nothing is written after it
            status = comparison_status(folder)
            if live:
                live.update(status.table, refresh=True)
            if ended:
                break
            sleep(PAUSE)
        if not live:
            console.print(status.table)
    return status.finished


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder with the runs, at any depth.")] = Path("runs"),
    allow_code: AllowCode = None,
    as_json: Json = False,
) -> None:
    """List the runs in a folder: method, rounds, Δm, start, and whether each is running, finished or interrupted."""
    with clear_errors():
        from fedhca2.reports.tables import runs_table
        from fedhca2.run_folder.listing import list_runs

        runs = list_runs(folder)
    if as_json:
        print_json([run.to_dict() for run in runs])
    else:
        open_console(highlight=False).print(runs_table(runs, folder), soft_wrap=not runs)
