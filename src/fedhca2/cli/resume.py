"""`fedhca2 resume`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors
from fedhca2.cli.options import TensorBoardFolder, WandbProject
from fedhca2.cli.run import conclude, stopped, watched


@app.command()
def resume(
    run: Annotated[Path, typer.Argument(help="The run's folder.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Change a setting: --set rounds=50, or clients that come or go."
        ),
    ] = None,
    tensorboard: TensorBoardFolder = None,
    wandb: WandbProject = None,
) -> None:
    """Go on with a run that was interrupted, from its last checkpoint."""
    console = Console()
    with clear_errors(), stopped():
        from fedhca2.federation.run import resume as resume_run

        with watched(console, run, tensorboard, wandb) as watcher:
            if (run / "flower.json").exists():
                from fedhca2.experiment import ConfigError

                if overrides:
                    raise ConfigError([f"--set: a run over Flower goes on as it was, found {overrides[0]}"])
                from fedhca2.federation.flower.engines import resume_on

                result = resume_on(run, watcher)
            else:
                result = resume_run(run, watcher, overrides or [])
    conclude(console, result, run)
