"""`fedhca2 run`."""

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors


@app.command()
def run(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of an embedded experiment.")] = "demo",
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: --set rounds=5 --set method.c=0.2"),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; a new one under runs/ by default.")] = None,
    baseline: Annotated[Path | None, typer.Option(help="A finished run of 'local' to compare with.")] = None,
) -> None:
    """Train a federation and say what it gave each client."""
    console = Console()
    with clear_errors():
        from fedhca2.experiment import Experiment
        from fedhca2.federation.run import run as run_experiment
        from fedhca2.reports.console import ConsoleWatcher
        from fedhca2.reports.tables import conclusion, result_table

        experiment = Experiment.load(config, overrides or [])
        folder = out or Path("runs") / f"{experiment.name}-{datetime.now():%Y%m%d-%H%M%S}"
        with ConsoleWatcher(console) as watcher:
            result = run_experiment(experiment, folder, watcher, baseline)
    console.print(result_table(result))
    console.print(conclusion(result))
    console.print(f"{result.seconds:.0f} s for {result.method}; everything is in {folder}/", highlight=False)
