"""Progress in a notebook: a bar for each run, which IPython updates in place."""

from collections.abc import Mapping
from html import escape
from time import monotonic
from typing import Any

from rich.console import Console
from torch import Tensor

from fedhca2.experiment import Experiment, Shard
from fedhca2.messages import Order, Reply
from fedhca2.reports.console import ConsoleWatcher, loss_text
from fedhca2.run_folder.records import ServerRecord, Watcher
from fedhca2.words import counted, duration_text

PAUSE_S = 0.5  # between two updates within a round


def watch_here(console: Console) -> "ConsoleWatcher | NotebookWatcher":
    """What shows the progress of a run: a bar in a notebook, otherwise bars in a terminal or lines in a pipe."""
    return NotebookWatcher() if console.is_jupyter and not console.quiet else ConsoleWatcher(console)


class NotebookWatcher(Watcher):
    """Shows the rounds, the time left, the last losses, and what went wrong."""

    def __init__(self) -> None:
        self._bar: Any = None

    def __enter__(self) -> "NotebookWatcher":
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if self._bar:
            self._state += ", stopped" if kind else ", finished"
            self._bar.update(self._drawn)

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Show a new bar."""
        from IPython.display import HTML, display

        self._html, self._clients, self._total = HTML, len(shards), experiment.rounds
        self._name = f"{experiment.method_name}, {counted(len(shards), 'client')}"
        self._done, self._seconds, self._shown = 0, list[float](), monotonic()
        self._parts: dict[str, float] = {}  # of this round, by client
        self._losses: dict[str, float] = {}
        self._state, self._notes = "starting", list[str]()
        self._bar = display(self._drawn, display_id=True)

    @property
    def _drawn(self) -> Any:
        value = self._done + sum(self._parts.values()) / max(self._clients, 1)
        bar = f'<progress value="{value:.3f}" max="{self._total}" style="width: 20em"></progress>'
        lines = [f"<b>{escape(self._name)}</b> {bar} {escape(self._state)}", *map(escape, self._notes)]
        return self._html(f"<div>{'<br>'.join(lines)}</div>")

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Move the bar a part of a round."""
        self._parts[client] = done / total
        if monotonic() - self._shown > PAUSE_S:
            self._shown = monotonic()
            self._bar.update(self._drawn)

    def replied(self, order: Order, reply: Reply) -> None:
        """Remember a client's loss, and what it declined."""
        if reply.declined:
            self._notes.append(f"round {order.round + 1}: {reply.client} declined: {reply.declined}")
        if reply.losses:
            self._losses[reply.client] = sum(reply.losses.values())

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Move the bar to the end of the round."""
        self._done, self._parts = round + 1, {}
        self._seconds.append(seconds)
        self._notes += [f"round {round + 1}: {client} was left out: {why}" for client, why in record.refused.items()]
        left = (self._total - self._done) * sum(self._seconds) / len(self._seconds)
        told = f", {duration_text(left)} left" if left else ""
        self._state = f"round {self._done} of {self._total}; loss: {loss_text(self._losses)}{told}"
        self._losses.clear()
        self._bar.update(self._drawn)
