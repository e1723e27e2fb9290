"""A run's numbers sent elsewhere while it goes on."""

from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from torch import Tensor

from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.run import RunWatcher
from fedhca2.federation.server import ServerRecord
from fedhca2.messages import Order, Reply
from fedhca2.reports.follow import Follower
from fedhca2.reports.run_files import RunFiles
from fedhca2.reports.sinks import Sink, Sinks, send


class Sending:
    """Tells another watcher everything, and sinks what the run has written down: what `fedhca2 watch` would send."""

    def __init__(self, watcher: RunWatcher, run: Path, wanted: Sinks) -> None:
        self.watcher, self.run, self.wanted = watcher, run, wanted
        self.follower = Follower(run)
        self.sinks: list[Sink] | None = None

    def __enter__(self) -> "Sending":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Send the rest, however the run ended."""
        if self.sinks is not None:
            send(self.follower.look(), self.sinks)
            for sink in self.sinks:
                sink.close()

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Open the sinks: now the run has its folder."""
        if self.sinks is None:
            self.sinks = self.wanted.open(self.run.name, RunFiles.open(self.run).config)
        self.watcher.started(experiment, shards)

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Nothing is sent of batches."""
        self.watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        """Nothing is sent before the round is over."""
        self.watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Send what was written down about the round."""
        send(self.follower.look(), self.sinks or [])
        self.watcher.aggregated(round, record, seconds)
