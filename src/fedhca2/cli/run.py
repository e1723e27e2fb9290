"""`fedhca2 run`, `resume`, `watch` and `runs`, and the commands that use a run's models."""

import shlex
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from time import sleep
from typing import Any

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from fedhca2.cli.app import open_console, print_json
from fedhca2.deployment import Trained
from fedhca2.deployment.export import Format
from fedhca2.deployment.export import export as export_model
from fedhca2.deployment.trained import evaluate as evaluate_run
from fedhca2.deployment.trained import predict_files
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import find_runs
from fedhca2.federation.engine import check_in_process
from fedhca2.federation.forecast import forecast
from fedhca2.federation.run import check_new
from fedhca2.records import Records
from fedhca2.reports.console import PAUSE_S, ConsoleWatcher, LiveStatus, follow
from fedhca2.reports.pictures import samples_panel, save_picture
from fedhca2.reports.tables import conclusion, forecast_summary, result_table, runs_table
from fedhca2.reports.tracking import Trackers
from fedhca2.run_folder.folder import PAGE, default_folder, in_use
from fedhca2.run_folder.listing import describe_run, list_runs
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watchers
from fedhca2.run_folder.result import Result, Scored
from fedhca2.run_folder.writer import write_evaluation
from fedhca2.runs import EngineName, resume_function, run_function
from fedhca2.words import counted


def run(
    config: str,
    overrides: list[str] | None,
    out: Path | None,
    baseline: Path | None,
    engine: EngineName,
    track: list[str] | None,
    dry_run: bool,
    trivial: bool,
    as_json: bool,
) -> None:
    """Train a federation and print what each client gained."""
    experiment = Experiment.load(config, overrides or [])
    folder, console = out or default_folder(experiment.name), open_console(stderr=as_json)
    with Trackers(folder, track or []) as trackers:
        if dry_run:
            check_new(experiment, folder, baseline)
            if engine == "in-process":
                check_in_process(experiment)
            _show_forecast(experiment, as_json)
            return
        with ConsoleWatcher(console) as shown:
            watcher = Watchers(trackers, shown)
            result = run_function(engine)(experiment, folder, watcher=watcher, baseline=baseline)
        conclude(console, result, folder, as_json, trivial=trivial)


def _show_forecast(experiment: Experiment, as_json: bool) -> None:
    planned = forecast(experiment)
    if as_json:
        print_json({"config": experiment.to_dict(), **planned.to_dict()})
    else:
        typer.echo(experiment.to_yaml())
        open_console(highlight=False).print(forecast_summary(experiment, planned))


def resume(run: Path, overrides: list[str] | None, track: list[str] | None, as_json: bool) -> None:
    """Continue an interrupted run from its last checkpoint."""
    console = open_console(stderr=as_json)
    with Trackers(run, track or []) as trackers:
        with ConsoleWatcher(console) as shown:
            result = resume_function(run)(run, watcher=Watchers(trackers, shown), overrides=overrides)
        conclude(console, result, run, as_json)


def conclude(console: Console, result: Result, folder: Path, as_json: bool = False, *, trivial: bool = False) -> None:
    """Print the outcome of a run; the exit code is 3 if every client failed."""
    from fedhca2.reports.figures.transfer import transfer_sentences  # plotly would delay the first batch

    files = RunFiles.open(folder)
    console.print(result_table(result, files.task_set, files.kinds, trivial=trivial))
    console.print(conclusion(result, files.task_set))
    for sentence in transfer_sentences(files)[:1]:
        console.print(Text(sentence))
    for client, faults in result.skipped.items():
        console.print(Text(f"{client}: skipped {counted(len(faults), 'unreadable file')}, such as {faults[0]}"))
    for client, why in result.missing.items():
        console.print(Text(f"{client} has no final scores: {why}", "yellow"))
    if result.privacy is not None:
        console.print(_describe_privacy(result.privacy), highlight=False)
    console.print(f"{result.seconds:.0f} s for {result.method}; all files are in {folder}/", highlight=False)
    draw_page(console, [files], folder)
    if as_json:
        print_json({"folder": str(folder), **result.to_dict()})
    if files.everyone_failed:
        message = f"all clients failed in the last round, so the scores mean nothing; see {files.events_file}"
        typer.echo(f"error: {folder}: {message}", err=True)
        raise typer.Exit(3)


def _describe_privacy(spent: Mapping[str, Any]) -> str:
    """The privacy cost of the client that sent the most updates, with dp-accounting's figure."""
    bound = spent["dp_accounting"]
    audit = "to check it: pip install 'fedhca2[privacy]'" if bound is None else f"dp-accounting: {bound:.4g}"
    return (
        f"client-level differential privacy: ε = {spent['epsilon']:.4g} at δ = {spent['delta']:g} "
        f"after at most {counted(spent['updates'], 'update')} of a client ({audit})"
    )


def draw_page(console: Console, runs: list[RunFiles], folder: Path) -> None:
    """Write report.html into a folder and print its path."""
    from fedhca2.reports.page.write import write_page  # plotly would delay the first batch

    console.print(f"Report: {write_page(runs, folder / PAGE)}", highlight=False, soft_wrap=True)


def watch(run: Path, once: bool, track: list[str] | None, as_json: bool) -> None:
    """Follow a run or a comparison in the terminal until it is finished or no process works on it."""
    console = open_console(stderr=as_json)
    if not RunFiles(run).begun and find_runs(run):
        if track:
            raise UserError(f"--track {track[0]}", f"expected the folder of one run, got a comparison: {run}")
        finished = _watch_comparison(console, run, once)
    else:
        finished = _watch_run(console, RunFiles.open(run), once, track)
    if as_json:
        print_json([listed.to_dict() for listed in list_runs(run)])
    if not finished and not once:
        again = shlex.join(["fedhca2", "resume", str(run)]) if RunFiles(run).begun else "the same `fedhca2 compare`"
        typer.echo(f"not finished, and no process is working on it; continue with: {again}", err=True)
        raise typer.Exit(1)


def _watch_run(console: Console, files: RunFiles, once: bool, track: list[str] | None) -> bool:
    """Show a run, and send its numbers where requested, until no process works on it; whether it is finished."""
    with Trackers(files.path, track or []) as trackers:
        board = LiveStatus(files)
        trackers.start()
        with Live(board, console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
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
        raise typer.Exit(1)
    return files.finished


def _watch_comparison(console: Console, folder: Path, once: bool) -> bool:
    """Show the runs of a comparison until no process works on it; whether all that have begun are finished."""
    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            ended = once or not in_use(folder)  # read first: nothing is written after it
            runs = [describe_run(path) for path in find_runs(folder)]
            if live:
                live.update(runs_table(runs, folder), refresh=True)
            if ended:
                break
            sleep(PAUSE_S)
    if not live:
        console.print(runs_table(runs, folder))
    return all(run.state in ("finished", "failed") for run in runs)


def runs(folder: Path, as_json: bool) -> None:
    """List the runs in a folder."""
    runs = list_runs(folder)
    if as_json:
        print_json([run.to_dict() for run in runs])
    else:
        open_console(highlight=False).print(runs_table(runs, folder), soft_wrap=not runs)


def evaluate(
    run: Path, split: Scored | None, thresholds: int, client: str | None, trivial: bool, as_json: bool
) -> None:
    """Re-evaluate the models that a run saved, and write RUN/evaluation-SPLIT[-CLIENT].json."""
    console = open_console(stderr=as_json)
    with _progress() as show:
        result = evaluate_run(run, lambda name: show(f"evaluating {name}"), split, thresholds, client)
    scores = {key: getattr(result, key) for key in ("clients", "baseline", "delta_m", "delta_m_by_client")}
    evaluation = {"split": result.split, "thresholds": thresholds, **scores}
    written = write_evaluation(run, result.split, client, evaluation)
    tasks = RunFiles(run).task_set
    images = {"val": "validation", "train": "training", "test": "test"}[result.split]
    console.print(result_table(result, tasks, trivial=trivial))
    console.print(conclusion(result, tasks))
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


def predict(run: Path, images: list[Path], client: str, out: Path, raw: bool, as_json: bool, as_csv: bool) -> None:
    """Predict all tasks of a client, and print what it says about each image."""
    if as_json and as_csv:
        raise UserError("--csv", "expected one format, got --json as well")
    records = predict_files(Trained.open(run, client), images, out, raw=raw)
    if as_json:
        print_json(records)
        return
    if as_csv:
        columns = ("image", "task", "answer", "value")
        typer.echo(Records({key: record[key] for key in columns} for record in records).to_csv(), nl=False)
        return
    for record in records:
        typer.echo(f"{record['image']}  {record['task']}: {record['answer']}")
    typer.echo(f"Pictures are in {out}/")


def picture(run: Path, client: str, out: Path | None, sample: int, tile: int) -> None:
    """Paint a client's sample: input, label, and the predictions before and after training."""
    panel = samples_panel(RunFiles.open(run), client, sample, tile)
    path = out or Path(f"{client}-{sample}.png")
    save_picture(panel, path)
    typer.echo(path)


def export(run: Path, client: str, format: Format, out: Path, size: tuple[int, int] | None) -> None:
    """Write a client's model for other programs, with a card that describes inputs and outputs."""
    for path in export_model(Trained.open(run, client), format, out, size):
        typer.echo(path)
