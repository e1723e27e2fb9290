"""Sending a run's numbers and files to trackers, while it goes on or afterwards."""

import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from time import sleep
from typing import Any
from uuid import uuid4

from torch import Tensor

from fedhca2.config import suggest
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.imports import FORMS, is_import_path, load, told
from fedhca2.messages import Order, Reply
from fedhca2.reports.trackers import TRACKERS, Scalar, TrackedRun, Tracker
from fedhca2.run_folder.event_log import Event, parse_event
from fedhca2.run_folder.lock import in_use
from fedhca2.run_folder.names import TRACKING
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import ServerRecord, Watcher
from fedhca2.run_folder.strict_json import mapping, read_json, to_json
from fedhca2.whole_files import write_whole


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

    A resumed run may drop the events of an unfinished round, and log others in their place: what is no longer there
    was read in vain, and all events are read again.
    """

    def __init__(self, run: Path) -> None:
        self.path, self.place, self.last = RunFiles(run).events_file, 0, b""  # the last line that was read

    def look(self) -> list[Event]:
        """Read new events, up to the last whole line."""
        if not self.path.is_file():
            return []
        with self.path.open("rb") as file:
            file.seek(self.place - len(self.last))
            if file.read(len(self.last)) != self.last:
                self.place, self.last = 0, b""
                file.seek(0)
            lines = [line for line in file if line.endswith(b"\n")]
        self.place += sum(map(len, lines))
        self.last = lines[-1] if lines else self.last
        return [parse_event(line, str(self.path)) for line in lines]


def follow(run: Path, *, wait: bool = True, pause: Callable[[float], None] = sleep) -> Iterator[list[Event]]:
    """Yield lists of new events until no process works on the run, or with `wait=False` until there are none left."""
    follower = Follower(run)
    while True:
        ended = RunFiles(run).finished or not in_use(run)  # read first: nothing is written after it
        yield follower.look()
        if ended or not wait:
            return
        pause(PAUSE)


class Trackers:
    """The trackers that a command asks for, as NAME=PLACE. They are checked at once, and start when the run does.

    A tracker that fails later does not stop the run: it gets nothing more, and a line says how to send the rest.
    """

    def __init__(self, run: Path, wanted: Sequence[str]) -> None:
        self.run, self.failed = run, list[str]()
        self._trackers = {text: _tracker(text) for text in wanted}
        self._started = False

    def start(self) -> None:
        """Tell every tracker about the run, which has its folder by now; raises UserError if one cannot start."""
        if not self._started and self._trackers:
            files = RunFiles.open(self.run)
            about = TrackedRun(files.path.absolute().name, _tracking_id(files.path / TRACKING), files.config)
            for text, tracker in self._trackers.items():
                try:
                    tracker.start(about)
                except Exception as error:  # other people's code raises anything
                    raise UserError([f"--track {text}: {told(error)}"]) from error
        self._started = True

    def send(self, events: Iterable[Event]) -> None:
        """Send the numbers of these events."""
        numbers = [scalar for event in events for scalar in scalars(event)]
        if self._started and numbers:
            self._each(lambda tracker: tracker.log(numbers))

    def finish(self) -> None:
        """Send the outcome of a finished run: its Δm, settings, result, page and models."""
        files = RunFiles(self.run)
        if not self._started or not files.finished:
            return
        gain = files.finished_result["delta_m"]
        if gain is not None:
            self._each(lambda tracker: tracker.log([Scalar("delta_m", files.rounds, gain)]))
        self._each(lambda tracker: tracker.keep(files.outcome_files))

    def close(self) -> None:
        """Close those that have started."""
        if self._started:
            self._each(lambda tracker: tracker.close(finished=RunFiles(self.run).finished))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for text, tracker in list(self._trackers.items()):
            try:
                act(tracker)
            except Exception as error:
                del self._trackers[text]
                self.failed.append(text)
                command = shlex.join(["fedhca2", "watch", str(self.run), "--track", text])
                rest = f"send the rest later: {command}"
                print(f"--track {text}: stopped, found {told(error)}; {rest}", file=sys.stderr)


def _tracking_id(path: Path) -> str:
    """The run's id in trackers, from this file, which is written if it is missing."""
    if not path.is_file():
        write_whole(path, to_json({"id": uuid4().hex}).encode())
    found = str(mapping(path, read_json(path)).get("id"))
    if not re.fullmatch("[0-9a-f]{32}", found):
        raise UserError([f"{path}: id should be 32 hexadecimal digits, found {found!r:.80}"])
    return found


def _tracker(text: str) -> Tracker:
    """Open the tracker that NAME=PLACE asks for; raises UserError if it cannot be used."""
    name, _, place = text.partition("=")
    try:
        if not name or not place:
            raise ValueError(f"should be NAME=PLACE, found {text!r}")
        if name in TRACKERS and find_spec(name) is None:
            raise ValueError(f"needs another package: pip install 'fedhca2[{name}]'")
        if name not in TRACKERS and not is_import_path(name):
            raise ValueError(f"unknown tracker {name!r}. {suggest(name, TRACKERS)}; or {FORMS}")
        kind = TRACKERS[name] if name in TRACKERS else load(name, "a class with start, log, keep and close", _tracks)
        return kind(place)
    except ValueError as error:
        raise UserError([f"--track {text}: {error}"]) from None
    except Exception as error:  # other people's code raises anything
        raise UserError([f"--track {text}: {told(error)}"]) from error


def _tracks(found: Any) -> bool:
    return isinstance(found, type) and all(hasattr(found, name) for name in ("start", "log", "keep", "close"))


class Sending(Watcher):
    """Passes everything on to another watcher, and sends the run's logged events to trackers, like `fedhca2 watch`."""

    def __init__(self, watcher: Watcher, trackers: Trackers) -> None:
        self.watcher, self.trackers = watcher, trackers
        self.follower = Follower(trackers.run)

    def __enter__(self) -> "Sending":
        return self

    def __exit__(self, *_: object) -> None:
        """Send the remaining events, however the run ended."""
        self.trackers.send(self.follower.look())

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Start the trackers, now that the run has its folder."""
        try:
            self.trackers.start()
        except UserError as error:
            command = shlex.join(["fedhca2", "resume", str(self.trackers.run)])
            raise UserError([f"{error}; the run has begun, continue it with: {command}"]) from error
        self.watcher.started(experiment, shards)

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        """Batches are not sent."""
        self.watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        """Nothing is sent before the round ends."""
        self.watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        """Send the logged events of the round."""
        self.trackers.send(self.follower.look())
        self.watcher.aggregated(round, record, seconds)
