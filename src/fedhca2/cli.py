"""The command. What is slow to import is imported by the command that needs it."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhca2.version import __version__

app = typer.Typer(
    name="fedhca2",
    help="Federated multi-task learning among clients that do not share a task list.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

WRONG_INPUT = 2


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fedhca2 {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Federated multi-task learning among clients that do not share a task list."""


@contextmanager
def _clear_errors() -> Iterator[None]:
    """What is wrong with the input is a line or two on standard error and exit code 2, without a traceback."""
    from fedhca2.experiment import ConfigError

    try:
        yield
    except ConfigError as error:
        for line in error.lines:
            typer.echo(f"error: {line}", err=True)
        raise typer.Exit(WRONG_INPUT) from None
    except OSError as error:
        typer.echo(f"error: {error.filename or ''}{': ' if error.filename else ''}{error.strerror or error}", err=True)
        raise typer.Exit(WRONG_INPUT) from None


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
    with _clear_errors():
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


@app.command()
def methods() -> None:
    """List the methods with what they share and their settings."""
    from fedhca2.reports.methods import methods_table

    Console().print(methods_table())


def main() -> None:
    """Run the command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
