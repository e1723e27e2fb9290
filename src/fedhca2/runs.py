"""Experiments that run, and runs to look at: what a notebook or a script uses."""

from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from fedhca2 import experiment
from fedhca2.errors import UserError
from fedhca2.federation.result import Result
from fedhca2.federation.run import run as run_experiment
from fedhca2.reports.console import ConsoleWatcher
from fedhca2.reports.page.tables import result_table
from fedhca2.reports.run_files import RunFiles

if TYPE_CHECKING:
    from PIL.Image import Image


class Experiment(experiment.Experiment):
    """Data sets, clients, a model and a method, ready to run.

    >>> Experiment.load("demo", ["rounds=5"]).rounds
    5
    """

    def run(self, out: str | Path | None = None, *, baseline: str | Path | None = None, quiet: bool = False) -> "Run":
        """Train, evaluate and write the run's folder: `out`, or a new one under runs/."""
        folder = Path(out) if out else Path("runs") / f"{self.name}-{datetime.now():%Y%m%d-%H%M%S}"
        with ConsoleWatcher(Console(quiet=quiet)) as watcher:
            run_experiment(self, folder, watcher=watcher, baseline=Path(baseline) if baseline else None)
        return Run(folder)


@dataclass(frozen=True)
class Run:
    """A run by its folder. In a notebook it shows its table of results."""

    folder: Path

    @classmethod
    def open(cls, folder: str | Path) -> "Run":
        """A run that was made before."""
        return cls(RunFiles.open(folder).path)

    @cached_property
    def files(self) -> RunFiles:
        """What the run wrote down: config, events, scores, samples."""
        return RunFiles.open(self.folder)

    @cached_property
    def result(self) -> Result:
        """What the run came to: every client's scores, Δm, time and bytes."""
        if self.files.result is None:
            raise UserError([f"{self.folder}: should be a finished run, found no result.json in it"])
        return Result(**self.files.result)

    def report(self, path: str | Path | None = None) -> Path:
        """Write the page that shows what happened, by default report.html in the run's folder."""
        from fedhca2.reports.page import write_page

        return write_page([self.files], Path(path) if path else self.folder / "report.html")

    def picture(self, client: str, sample: int = 0) -> "Image":
        """A client's sample: input, label, and the predictions before and after training."""
        from fedhca2.reports.pictures import samples_panel

        return samples_panel(self.files, client, sample)

    def _repr_html_(self) -> str:
        table = result_table(self.files)
        head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(c.text)}</td>' for c in row)}</tr>" for row in table.rows)
        return f"<p>{escape(table.note)}</p><table><tr>{head}</tr>{rows}</table>"
