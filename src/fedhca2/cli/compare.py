"""`fedhca2 compare` and `report`: compare several runs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors
from fedhca2.cli.page import draw_page
from fedhca2.cli.run import stopped
from fedhca2.words import counted

if TYPE_CHECKING:
    from fedhca2.federation.comparison_runs import ComparisonRun

SOME_FAILED = 1


@app.command()
def compare(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of an embedded experiment.")] = "demo",
    methods: Annotated[str, typer.Option(help="Names separated by commas, or 'all'.")] = "fedavg,fedhca2",
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per method.")] = 1,
    out: Annotated[Path | None, typer.Option(help="The folder for all runs; by default runs/compare-NAME.")] = None,
    jobs: Annotated[
        str,
        typer.Option(
            metavar="N|auto",
            help="Number of parallel runs, each in its own process with its share of the cores; "
            "auto: as many as cores and memory allow. On a GPU, runs wait for memory.",
        ),
    ] = "1",
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: --set rounds=5")
    ] = None,
) -> None:
    """Compare methods on the same data, shards and initial values. Finished runs are not repeated."""
    console = Console()
    most = _number_of_jobs(jobs)
    with clear_errors(), stopped():
        from fedhca2.errors import UserError
        from fedhca2.experiment import Experiment
        from fedhca2.federation.comparison_runs import complete, plan_runs
        from fedhca2.methods import METHODS
        from fedhca2.reports.comparison import write_comparison
        from fedhca2.reports.comparison.critical_difference import FILE
        from fedhca2.reports.comparison.layouts import comparison_table
        from fedhca2.run_folder.lock import lock_folder
        from fedhca2.run_folder.names import comparison_folder
        from fedhca2.run_folder.reader import RunFiles

        experiment = Experiment.load(config, overrides or [])
        folder = out or comparison_folder(experiment.name)
        names = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
        if not names:
            raise UserError(["--methods: should name at least one method, or 'all'"])
        planned = plan_runs(experiment, names, seeds, folder)
        done = sum(run.finished for run in planned)
        console.print(f"{counted(len(planned), 'run')} in {folder}/, {done} already finished", highlight=False)
        folder.mkdir(parents=True, exist_ok=True)
        lock = lock_folder(folder)
        try:
            faults = _run_all(console, planned, most, done)
        finally:
            lock.release()
        runs = [RunFiles.open(run.folder) for run in complete(planned)]
        if runs:
            console.print(comparison_table(write_comparison(runs, folder)))
            figure = f", {FILE}" if (folder / FILE).exists() else ""
            console.print(f"table.md, table.csv, table.tex{figure} are in {folder}/", highlight=False, soft_wrap=True)
            draw_page(console, runs, folder)
    if faults:
        typer.echo(
            f"{len(faults)} of {counted(len(planned), 'run')} failed; repeat the command to retry them", err=True
        )
        raise typer.Exit(SOME_FAILED)


def _number_of_jobs(jobs: str) -> int | None:
    """The most runs at a time, or None if the machine decides."""
    if jobs == "auto":
        return None
    if not jobs.isdecimal() or int(jobs) < 1:
        raise typer.BadParameter(f"should be a number from 1, or auto, found {jobs!r}", param_hint="--jobs")
    return int(jobs)


def _run_all(console: Console, planned: Sequence["ComparisonRun"], most: int | None, done: int) -> Mapping[Path, str]:
    """Run what is not finished, and return the errors of the runs that failed."""
    if most != 1:
        from fedhca2.federation.parallel_runs import run_in_parallel
        from fedhca2.reports.console import ParallelConsole

        with ParallelConsole(console, len(planned), done) as side_by_side:
            return run_in_parallel(planned, most, side_by_side)
    from fedhca2.federation.comparison_runs import run_all
    from fedhca2.reports.console import ConsoleWatcher

    with ConsoleWatcher(console) as watcher:
        for _ in run_all(planned, watcher):
            pass
    return {}


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(help="The folder of a run, of several runs to compare, or of a comparison.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The page to write; by default report.html in the first run's folder."),
    ] = None,
) -> None:
    """Write a report page: one HTML file that needs no network."""
    with clear_errors():
        from fedhca2.federation.comparison_runs import known_runs
        from fedhca2.reports.figures.transfer import transfer_sentences
        from fedhca2.reports.page.write import write_page
        from fedhca2.run_folder.reader import RunFiles

        found = [RunFiles.open(folder) for run in runs for folder in known_runs(run) or [run]]
        typer.echo(write_page(found, output or runs[0] / "report.html"))
        for sentence in transfer_sentences(found[0])[:1] if len(found) == 1 else ():
            typer.echo(sentence, err=True)  # standard output is the page's path alone
