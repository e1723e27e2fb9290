"""`fedhca2 watch`."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors
from fedhca2.cli.options import TensorBoardFolder, WandbProject


@app.command()
def watch(
    run: Annotated[Path, typer.Argument(help="The folder of a run, running or finished.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and end.")] = False,
    tensorboard: TensorBoardFolder = None,
    wandb: WandbProject = None,
) -> None:
    """Follow a run in the terminal until it is finished."""
    from rich.live import Live

    console = Console()
    with clear_errors(), ExitStack() as stack:
        from fedhca2.reports.board import Board
        from fedhca2.reports.follow import follow
        from fedhca2.reports.run_files import RunFiles
        from fedhca2.reports.sinks import Sinks, send

        files = RunFiles.open(run)
        board = Board(files)
        sinks = Sinks(tensorboard, wandb).open(run.name, files.config)
        for sink in sinks:
            stack.callback(sink.close)
        live = Live(board, console=console, auto_refresh=False)
        if console.is_terminal:
            stack.enter_context(live)
        for events in follow(run, wait=not once):
            for event in events:
                board.add(event)
            send(events, sinks)
            if console.is_terminal:
                live.refresh()
        if not console.is_terminal:
            console.print(board)
