"""How cells side by side go: a line for each that ends, and in a terminal one for each that runs."""

from collections.abc import Sequence
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from fedhca2.federation.cells import Cell
from fedhca2.federation.jobs import Job, log_file
from fedhca2.reports.run_files import RunFiles

EVERY = 60.0  # seconds between two lines that say how it stands, where there is no terminal


class JobsConsole:
    """Shows which cells run, how far they have come and what they came to."""

    def __init__(self, console: Console, total: int, done: int) -> None:
        self.console = console
        self.total, self.done = total, done
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.said = monotonic()

    def __enter__(self) -> "JobsConsole":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.live.stop()

    def ended(self, cell: Cell, seconds: float, fault: str) -> None:
        """A line for a cell that is over."""
        self.done += 1
        what = f"[red]failed: [/]{escape(fault)} ({log_file(cell)})" if fault else _outcome(cell)
        self.console.print(
            f"{self.done}/{self.total}  {cell.name}: {what}, {seconds:.0f} s", highlight=False, soft_wrap=True
        )

    def looked(self, running: Sequence[Job], waiting: int) -> None:
        """How it stands."""
        if self.console.is_terminal:
            table = Table.grid(padding=(0, 2))
            for job in running:
                table.add_row(job.cell.name, job.last_line or "starting", f"{job.seconds:.0f} s")
            table.add_row(f"{waiting} more to come")
            self.live.update(table, refresh=True)
        elif monotonic() - self.said > EVERY:
            self.said = monotonic()
            lines = "; ".join(f"{job.cell.name}: {job.last_line or 'starting'}" for job in running)
            self.console.print(f"running {lines}; {waiting} more to come", highlight=False, soft_wrap=True)


def _outcome(cell: Cell) -> str:
    gain = (RunFiles.open(cell.folder).result or {}).get("delta_m")
    return "finished" if gain is None else f"Δm {gain:+.2f} %"
