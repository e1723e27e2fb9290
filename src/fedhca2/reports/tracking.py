"""Sending a run's numbers to TensorBoard and Weights & Biases."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.engine import RunWatcher
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.event_log import Event, parse_events
from fedhca2.run_folder.lock import in_use
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import ServerRecord


class Scalar(NamedTuple):
    """A number of one round."""

    tag: str
    round: int
    value: float


def scalars(event: Event) -> Iterator[Scalar]:
    """All numbers of an event that are worth plotting.

    >>> list(scalars({"event": "loss", "round": 0, "client": "a", "task": "sal", "metric": "loss", "value": 0.5}))
    [Scalar(tag='a/sal/loss', round=1, value=0.5)]
    """
    match event["event"]:
        case "metric":
            yield Scalar(f"{event['client']}/{event['task']}/{event['metric']}", event["round"], event["value"])
        case "loss":
            yield Scalar(f"{event['client']}/{event['task']}/loss", event["round"] + 1, event["value"])
        case "client":
            for name in ("seconds", "bytes_up", "bytes_down"):
                yield Scalar(f"{event['client']}/{name}", event["round"] + 1, event[name])
        case "weights":
            for key, values in event["weights"].items():
                for layer, value in enumerate(values):
                    tag = key if len(values) == 1 else f"{key}/{layer}"
                    yield Scalar(f"weights/{tag}", event["round"] + 1, value)
        case "round":
            yield Scalar("round/seconds", event["round"] + 1, event["seconds"])


PAUSE = 0.5  # seconds between reads


class Follower:
    """Reads what was added to a run's events since the last read.

    A resumed run may drop the events of an unfinished round; they are then read again.
    """

    def __init__(self, run: Path) -> None:
        self.path, self.place, self.rest = RunFiles(run).events_file, 0, b""

    def look(self) -> list[Event]:
        """Read new events."""
        content = b""
        if self.path.is_file():
            if self.path.stat().st_size < self.place:
                self.place, self.rest = 0, b""
            with self.path.open("rb") as file:
                file.seek(self.place)
                content = file.read()
        self.place += len(content)
        *lines, self.rest = (self.rest + content).split(b"\n")
        return list(parse_events([line.decode() for line in lines], str(self.path)))


def follow(run: Path, *, wait: bool = True, pause: Callable[[float], None] = sleep) -> Iterator[list[Event]]:
    """Yield lists of new events until no process works on the run, or with `wait=False` until there are none left."""
    follower = Follower(run)
    while True:
        ended = RunFiles(run).finished or not in_use(run)  # read first: nothing is written after it
        yield follower.look()
        if ended or not wait:
            return
        pause(PAUSE)


class Sink(Protocol):
    """A receiver of numbers."""

    def add(self, scalar: Scalar) -> None:
        """Take one number."""

    def close(self) -> None:
        """Finish after the last number."""


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder))

    def add(self, scalar: Scalar) -> None:
        """Take one number."""
        self._writer.add_scalar(scalar.tag, scalar.value, scalar.round)

    def close(self) -> None:
        """Write the remaining numbers."""
        self._writer.close()


class Wandb:
    """A run in a project of Weights & Biases."""

    def __init__(self, project: str, name: str, config: Mapping[str, Any]) -> None:
        import wandb

        self._run: Any = wandb.init(project=project, name=name, config=dict(config))
        self._run.define_metric("*", step_metric="round")

    def add(self, scalar: Scalar) -> None:
        """Take one number, plotted against its round: W&B's own steps cannot go back, but clients' rounds do."""
        self._run.log({scalar.tag: scalar.value, "round": scalar.round})

    def close(self) -> None:
        """Send the remaining numbers."""
        self._run.finish()


def send(events: Iterable[Event], sinks: Sequence[Sink]) -> None:
    """Send the numbers of these events to every sink."""
    for event in events:
        for scalar in scalars(event):
            for sink in sinks:
                sink.add(scalar)


class Sinks:
    """The sinks that a command asks for. They are checked at once, and opened when there is something to send."""

    def __init__(self, tensorboard: Path | None, wandb: str | None) -> None:
        self.tensorboard, self.wandb = tensorboard, wandb
        missing = [name for name in ("tensorboard", "wandb") if getattr(self, name) and find_spec(name) is None]
        if missing:
            raise UserError([f"--{name}: needs another package: pip install 'fedhca2[{name}]'" for name in missing])

    def open(self, name: str, config: Mapping[str, Any]) -> list[Sink]:
        """Open the sinks; W&B shows the run's name and config."""
        sinks: list[Sink] = [TensorBoard(self.tensorboard)] if self.tensorboard else []
        return [*sinks, Wandb(self.wandb, name, config)] if self.wandb else sinks


class Sending:
    """Passes everything on to another watcher, and sends the run's logged events to sinks, like `fedhca2 watch`."""

    def __init__(self, watcher: RunWatcher, run: Path, wanted: Sinks) -> None:
        self.watcher, self.run, self.wanted = watcher, run, wanted
        self.follower = Follower(run)
        self.sinks: list[Sink] | None = None

    def __enter__(self) -> "Sending":
        return self

    def __exit__(self, *_: object) -> None:
        """Send the remaining events, however the run ended."""
        if self.sinks is not None:
            send(self.follower.look(), self.sinks)
            for sink in self.sinks:
                sink.close()

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Open the sinks, now that the run has its folder."""
        if self.sinks is None:
            self.sinks = self.wanted.open(self.run.name, RunFiles.open(self.run).config)
        self.watcher.started(experiment, shards)

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Batches are not sent."""
        self.watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        """Nothing is sent before the round ends."""
        self.watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Send the logged events of the round."""
        send(self.follower.look(), self.sinks or [])
        self.watcher.aggregated(round, record, seconds)
