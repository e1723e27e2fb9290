"""A comparison in the terminal: while it runs, and its table."""

from collections.abc import Sequence
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from fedhca2.federation.comparison_runs import ComparisonRun
from fedhca2.federation.parallel_runs import RunProcess, log_file
from fedhca2.reports.comparison.gather import Comparison
from fedhca2.reports.comparison.layouts import heading, shown
from fedhca2.run_folder.reader import RunFiles

BESIDE = 4  # methods that have room beside each other


def comparison_table(comparison: Comparison) -> Table:
    """A column per method with the best of each row in bold, or of many methods what they come to."""
    if len(comparison.entries) > BESIDE:
        return _summary(comparison)
    table = Table(title="Comparison", title_justify="left")
    table.add_column("group")
    table.add_column("metric")
    for method in comparison.entries:
        table.add_column(method, justify="right")
    group = ""
    for column in comparison.columns:
        cells = [
            f"[bold]{shown(row[column], column)}[/]"
            if comparison.is_best(method, column)
            else shown(row[column], column)
            for method, row in comparison.entries.items()
        ]
        table.add_row(column.group if column.group != group else "", heading(column), *cells)
        group = column.group
    return table


def _summary(comparison: Comparison) -> Table:
    gains = [column for column in comparison.columns if column.is_gain]
    scores = [column for column in comparison.columns if not column.is_gain]
    table = Table(title="Comparison", title_justify="left")
    table.add_column("method")
    for name in (*map(heading, gains), f"best in, of {len(scores)}"):
        table.add_column(name, justify="right")
    for method, row in comparison.entries.items():
        best = sum(comparison.is_best(method, column) for column in scores)
        table.add_row(method, *(shown(row[gain], gain) for gain in gains), str(best))
    return table


EVERY = 60.0  # seconds between two lines that say how it stands, where there is no terminal


class ParallelConsole:
    """Shows which runs run, how far they have come and what they came to."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console = console
        self.total, self.done = total, done
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.said = monotonic()

    def __enter__(self) -> "ParallelConsole":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def ended(self, run: ComparisonRun, seconds: float, fault: str) -> None:
        """A line for a run that is over."""
        self.done += 1
        what = f"[red]failed: [/]{escape(fault)} ({log_file(run)})" if fault else _outcome(run)
        self.console.print(
            f"{self.done}/{self.total}  {run.name}: {what}, {seconds:.0f} s", highlight=False, soft_wrap=True
        )

    def looked(self, running: Sequence[RunProcess], waiting: int) -> None:
        """How it stands."""
        if self.console.is_terminal:
            table = Table.grid(padding=(0, 2))
            for one in running:
                table.add_row(one.run.name, one.last_line or "starting", f"{one.seconds:.0f} s")
            table.add_row(f"{waiting} more to come")
            self.live.update(table, refresh=True)
        elif monotonic() - self.said > EVERY:
            self.said = monotonic()
            lines = "; ".join(f"{one.run.name}: {one.last_line or 'starting'}" for one in running)
            self.console.print(f"running {lines}; {waiting} more to come", highlight=False, soft_wrap=True)


def _outcome(run: ComparisonRun) -> str:
    gain = (RunFiles.open(run.folder).result or {}).get("delta_m")
    return "finished" if gain is None else f"Δm {gain:+.2f} %"
