"""Progress of a run in the terminal: live bars where there is one, a line per round where there is not."""

from collections.abc import Mapping
from time import monotonic
from types import TracebackType

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text
from torch import Tensor

from fedhca2.experiment import Experiment, Shard
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.records import ServerRecord

REFRESH = 0.2  # seconds between two readings of a loss, which has to be waited for on a GPU


class ConsoleWatcher:
    """Shows rounds, clients, batches, losses and the time left."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=console,
            disable=not console.is_terminal,
            transient=True,
        )
        self.rounds: TaskID | None = None
        self.clients: dict[str, TaskID] = {}
        self.losses: dict[str, float] = {}
        self.read = 0.0

    def __enter__(self) -> "ConsoleWatcher":
        self.progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.progress.stop()

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Say what is going to be trained."""
        name = experiment.method_name
        images = sum(len(shard.train) for shard in shards.values())
        self.console.print(
            f"[bold]{name}[/]: {len(shards)} clients, {images} training images, {experiment.rounds} rounds"
        )
        for task in self.progress.task_ids:
            self.progress.remove_task(task)
        self.total = experiment.rounds
        self.label = name
        self.rounds = self.progress.add_task(f"{name}: rounds", total=experiment.rounds, note="")
        self.clients = {
            client: self.progress.add_task(f"  {client}", total=None, note="", visible=False) for client in shards
        }

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Move a client's bar."""
        if not self.console.is_terminal or (monotonic() - self.read < REFRESH and done < total):
            return
        self.read = monotonic()
        self.progress.update(
            self.clients[client], completed=done, total=total, visible=True, note=f"loss {float(loss):.3f}"
        )

    def replied(self, order: Order, reply: Reply) -> None:
        """Keep a client's loss, and say what it declined."""
        if reply.declined:
            self.console.print(Text(f"round {order.round + 1}: {reply.client} declined: {reply.declined}", "yellow"))
        if reply.losses:
            self.losses[reply.client] = sum(reply.losses.values())

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Move the bar of rounds, and without a terminal print a line."""
        if self.rounds is not None:
            self.progress.update(self.rounds, completed=round + 1)
        for bar in self.clients.values():
            self.progress.update(bar, visible=False)
        for client, why in record.refused.items():
            self.console.print(Text(f"round {round + 1}: {client} was left out: {why}", "yellow"))
        if not self.console.is_terminal:
            losses = "  ".join(f"{client} {loss:.3f}" for client, loss in self.losses.items())
            self.console.print(
                f"{self.label} round {round + 1}/{self.total}  {seconds:.1f} s  loss: {losses}", soft_wrap=True
            )
