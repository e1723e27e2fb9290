"""`fedhca2 compare`."""

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from fedhca2.cli.app import app, clear_errors
from fedhca2.cli.run import stopped


@app.command()
def compare(
    config: Annotated[str, typer.Argument(help="A YAML file, or the name of an embedded experiment.")] = "demo",
    methods: Annotated[str, typer.Option(help="Names with commas between, or 'all'.")] = "fedavg,fedhca2",
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds for each method.")] = 1,
    out: Annotated[Path | None, typer.Option(help="A folder for all runs; by default runs/compare-NAME.")] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting: --set rounds=5")
    ] = None,
) -> None:
    """Compare methods on the same data, shards and initial values; what is finished is not run again."""
    console = Console()
    with clear_errors(), stopped():
        from fedhca2.experiment import Experiment
        from fedhca2.federation.cells import plan_cells, run_cells
        from fedhca2.methods import METHODS
        from fedhca2.reports.comparison import write_comparison
        from fedhca2.reports.comparison.console import comparison_table
        from fedhca2.reports.console import ConsoleWatcher
        from fedhca2.reports.run_files import RunFiles

        experiment = Experiment.load(config, overrides or [])
        folder = out or Path("runs") / f"compare-{experiment.name}"
        names = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
        cells = plan_cells(experiment, names, seeds, folder)
        done = sum(cell.finished for cell in cells)
        console.print(f"{len(cells)} runs in {folder}/, {done} of them finished already", highlight=False)
        with ConsoleWatcher(console) as watcher:
            runs = [RunFiles.open(cell.folder) for cell in run_cells(cells, watcher)]
        comparison = write_comparison(runs, folder)
    console.print(comparison_table(comparison))
    console.print(f"table.md, table.csv, table.tex and report.html are in {folder}/", highlight=False)
