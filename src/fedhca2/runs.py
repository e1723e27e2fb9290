"""Running experiments and opening runs, from a notebook or a script."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from html import escape
from pathlib import Path
from typing import Literal

from PIL.Image import Image
from rich.console import Console

from fedhca2 import imports
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import plan_runs, run_all
from fedhca2.federation.run import resume as resume_here
from fedhca2.federation.run import run as run_here
from fedhca2.reports.comparison import Comparison
from fedhca2.reports.console import ConsoleWatcher
from fedhca2.reports.layouts import write_comparison
from fedhca2.reports.page.tables import result_table
from fedhca2.run_folder.folder import PAGE, comparison_folder, default_folder
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import Result

Place = str | Path
EngineName = Literal["in-process", "flower-local", "flower-ray"]


def run(
    experiment: Experiment,
    out: Place | None = None,
    *,
    baseline: Place | None = None,
    engine: EngineName = "in-process",
    quiet: bool = False,
) -> "Run":
    """Train, evaluate and write the run's folder: `out`, or a new one under runs/.

    `baseline` is the folder of a finished run of 'local' to compare with.
    """
    folder, other = Path(out) if out else default_folder(experiment.name), Path(baseline) if baseline else None
    with ConsoleWatcher(Console(quiet=quiet)) as watcher:
        run_function(engine)(experiment, folder, watcher=watcher, baseline=other)
    return Run(folder)


def resume(
    folder: Place, overrides: list[str] | None = None, *, quiet: bool = False, allow_code: Sequence[str] = ()
) -> "Run":
    """Continue an interrupted run, or a finished one for more rounds: `overrides=["rounds=50"]`.

    `allow_code` are files and modules that the folder names and that you trust, if you have not run them here before.
    """
    existing = Run.open(folder, allow_code)
    with ConsoleWatcher(Console(quiet=quiet)) as watcher:
        resume_function(existing.folder)(existing.folder, watcher=watcher, overrides=overrides)
    return Run(existing.folder)


def compare(
    experiment: Experiment, methods: Sequence[str], out: Place | None = None, *, seeds: int = 1, quiet: bool = False
) -> Comparison:
    """Run each method with each seed on the same data, and write the table. Finished runs are not repeated."""
    folder = Path(out) if out else comparison_folder(experiment.name)
    planned = plan_runs(experiment, methods, seeds, folder)
    with ConsoleWatcher(Console(quiet=quiet)) as watcher:
        done = [RunFiles.open(one.folder) for one in run_all(planned, watcher)]
    return write_comparison(done, folder)


def run_function(engine: EngineName) -> Callable[..., Result]:
    """The function that runs an experiment on the named engine, with the arguments of `federation.run.run`."""
    if engine == "in-process":
        return run_here
    from fedhca2.federation.flower.local import run_over_flower

    return partial(run_over_flower, engine=engine)


def resume_function(folder: Path) -> Callable[..., Result]:
    """The function that continues a run on its original engine, with the arguments of `federation.run.resume`."""
    if RunFiles(folder).flower_note is None:
        return resume_here
    from fedhca2.federation.flower.local import resume_over_flower

    return resume_over_flower


@dataclass(frozen=True)
class Run:
    """A run and its folder. In a notebook it shows its table of results."""

    folder: Path

    @classmethod
    def open(cls, folder: Place, allow_code: Sequence[str] = ()) -> "Run":
        """Open an existing run; `allow_code` are files and modules that its folder names and that you trust."""
        imports.allow_code(allow_code)
        return cls(RunFiles.open(folder).path)

    @cached_property
    def files(self) -> RunFiles:
        """The run's files: config, events, scores, samples."""
        return RunFiles.open(self.folder)

    @cached_property
    def result(self) -> Result:
        """The outcome of the run: every client's scores, Δm, time and bytes."""
        return self.files.outcome

    def report(self, path: Place | None = None) -> Path:
        """Write the report page, by default report.html in the run's folder."""
        from fedhca2.reports.page.write import write_page

        return write_page([self.files], Path(path) if path else self.folder / PAGE)

    def picture(self, client: str, sample: int = 0) -> Image:
        """Paint a client's sample: input, label, and the predictions before and after training."""
        from fedhca2.reports.pictures import samples_panel

        return samples_panel(self.files, client, sample)

    def _repr_html_(self) -> str:
        table = result_table(self.files)
        head = "".join(f"<th>{escape(column)}</th>" for column in table.columns)
        rows = "".join(f"<tr>{''.join(f'<td>{escape(c.text)}</td>' for c in row)}</tr>" for row in table.rows)
        return f"<p>{escape(table.note)}</p><table><tr>{head}</tr>{rows}</table>"
