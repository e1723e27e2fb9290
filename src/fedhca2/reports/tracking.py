"""Sending a run's numbers and files to trackers: TensorBoard, W&B, MLflow, or a class of one's own."""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from time import sleep
from typing import Any, ClassVar, NamedTuple, Protocol
from uuid import uuid4

from torch import Tensor

from fedhca2.config import suggest
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.imports import FORMS, is_import_path, load, told
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.event_log import Event, parse_event
from fedhca2.run_folder.lock import in_use
from fedhca2.run_folder.names import TRACKING
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import ServerRecord, Watcher
from fedhca2.run_folder.strict_json import mapping, read_json, to_json
from fedhca2.whole_files import write_whole

SQLITE = "sqlite:///"


class Scalar(NamedTuple):
    """A number of one round."""

    tag: str
    round: int
    value: float


class TrackedRun(NamedTuple):
    """What a tracker learns about a run: the name of its folder, an id that a resumed run keeps, and its config."""

    name: str
    id: str
    config: Mapping[str, Any]


class Tracker(Protocol):
    """Takes the numbers and files of one run. It raises ValueError if a place cannot be used, and creates nothing."""

    def __init__(self, place: str) -> None: ...

    def start(self, run: TrackedRun) -> None:
        """The run starts or continues; all its numbers follow, also those from before it was interrupted."""

    def log(self, numbers: Sequence[Scalar]) -> None:
        """Take some numbers, in any order of rounds."""

    def keep(self, files: Mapping[str, Path]) -> None:
        """Take the files of a finished run, by their names within its folder."""

    def close(self, *, finished: bool) -> None:
        """Nothing follows; an unfinished run may be resumed later."""


def folder_at(place: str) -> Path:
    """The folder at this place, which may be missing; raises ValueError if it cannot be made or written to."""
    path, made = Path(place).absolute(), list[Path]()
    try:
        for folder in (*reversed(path.parents), path):
            if not folder.is_dir():
                folder.mkdir()
                made.insert(0, folder)
        TemporaryFile(dir=path).close()  # for root, the permissions of folders such as /proc promise too much
    except OSError as error:
        raise ValueError(f"expected a folder that can be written to, got {error.filename}: {error.strerror}") from None
    finally:
        for folder in made:  # the tracker makes it when the run starts
            folder.rmdir()
    return path


class TensorBoard:
    """Event files for TensorBoard in a folder, which has no place for other files."""

    def __init__(self, place: str) -> None:
        self._folder = folder_at(place)

    def start(self, run: TrackedRun) -> None:
        """Open a new file of events."""
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(self._folder))

    def log(self, numbers: Sequence[Scalar]) -> None:
        """Take some numbers."""
        for scalar in numbers:
            self._writer.add_scalar(scalar.tag, scalar.value, scalar.round)

    def keep(self, files: Mapping[str, Path]) -> None:
        """Files are not taken."""

    def close(self, *, finished: bool) -> None:
        """Write the remaining numbers."""
        self._writer.close()


class Wandb:
    """A run in a project of Weights & Biases."""

    def __init__(self, place: str) -> None:
        self._project = place

    def start(self, run: TrackedRun) -> None:
        """Begin the run, or continue it."""
        import wandb

        about = {"project": self._project, "name": run.name, "config": dict(run.config)}
        self._run: Any = wandb.init(**about, id=run.id, resume="allow", allow_val_change=True)
        self._run.define_metric("*", step_metric="round")

    def log(self, numbers: Sequence[Scalar]) -> None:
        """Take some numbers, those of a round in one call.

        They are plotted against their rounds: W&B's own steps cannot go back, but clients' rounds do.
        """
        rounds: dict[int, dict[str, float]] = {}
        for scalar in numbers:
            rounds.setdefault(scalar.round, {})[scalar.tag] = scalar.value
        for round, values in rounds.items():
            self._run.log({**values, "round": round})

    def keep(self, files: Mapping[str, Path]) -> None:
        """Take the files as one artefact."""
        import wandb

        artefact = wandb.Artifact(f"run-{self._run.id}", type="run")
        for name, path in files.items():
            artefact.add_file(str(path), name=name)
        self._run.log_artifact(artefact)

    def close(self, *, finished: bool) -> None:
        """Send the remaining numbers."""
        self._run.finish(exit_code=0 if finished else 1)


class MLflow:
    """A run in MLflow: in a folder, or at an address such as http://localhost:5000 or sqlite:///mlflow.db.

    Its parameters are the settings that the run started with, since MLflow cannot change them; the kept config has
    today's. Numbers that MLflow has already are not sent again.
    """

    TAG = "fedhca2.run"
    MOST_METRICS, MOST_PARAMETERS, LONGEST_VALUE = 1000, 100, 500  # that a request may have, and every version takes

    ENVIRONMENT: ClassVar = {
        "MLFLOW_DISABLE_TELEMETRY": "true",  # it would tell its makers that it is used
        "MLFLOW_ALLOW_FILE_STORE": "true",  # it would ask for a database in place of a folder
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",  # it would look for a missing server for four minutes
    }

    def __init__(self, place: str) -> None:
        for name, value in self.ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        if "://" in place:
            self._place = place
            if place.startswith(SQLITE):  # MLflow would try for minutes to open it
                folder_at(str(Path(place.removeprefix(SQLITE)).absolute().parent))
            self._connect().search_experiments(max_results=1)
        else:
            self._place = folder_at(place).as_uri()

    def _connect(self) -> Any:
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=self._place)

    def start(self, run: TrackedRun) -> None:
        """Begin the run, or continue it."""
        self._client, name = self._connect(), str(run.config.get("name", "fedhca2"))
        known = self._client.get_experiment_by_name(name)
        experiment = known.experiment_id if known else self._client.create_experiment(name)
        found = self._client.search_runs([experiment], f"tags.`{self.TAG}` = '{run.id}'", max_results=1)
        if found:
            self._id = found[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            made = self._client.create_run(experiment, run_name=run.name, tags={self.TAG: run.id})
            self._id = made.info.run_id
            self._log_parameters(run.config)
        self._sent = {key: self._history(key) for key in (found[0].data.metrics if found else ())}

    def _history(self, key: str) -> set[tuple[int, str]]:
        return {(point.step, repr(point.value)) for point in self._client.get_metric_history(self._id, key)}

    def _log_parameters(self, config: Mapping[str, Any]) -> None:
        from mlflow.entities import Param

        found = [Param(key, str(value)[: self.LONGEST_VALUE]) for key, value in flat(config)]
        for i in range(0, len(found), self.MOST_PARAMETERS):
            self._client.log_batch(self._id, params=found[i : i + self.MOST_PARAMETERS])

    def log(self, numbers: Sequence[Scalar]) -> None:
        """Take some numbers."""
        from mlflow.entities import Metric

        now, new = int(1000 * time.time()), []
        for scalar in numbers:
            sent, point = self._sent.setdefault(scalar.tag, set()), (scalar.round, repr(float(scalar.value)))
            if point not in sent:
                sent.add(point)
                new.append(Metric(scalar.tag, scalar.value, now, scalar.round))
        for i in range(0, len(new), self.MOST_METRICS):
            self._client.log_batch(self._id, metrics=new[i : i + self.MOST_METRICS])

    def keep(self, files: Mapping[str, Path]) -> None:
        """Take the files as artefacts."""
        for name, path in files.items():
            self._client.log_artifact(self._id, str(path), str(Path(name).parent) if "/" in name else None)

    def close(self, *, finished: bool) -> None:
        """Mark the run as finished, or as killed, until it is resumed."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


def flat(values: Any, place: str = "") -> Iterator[tuple[str, Any]]:
    """The settings of a config by their keys for `--set`; lists of plain values stay whole.

    >>> dict(flat({"rounds": 3, "clients": [{"tasks": ["sal"]}]}))
    {'rounds': 3, 'clients.0.tasks': '["sal"]'}
    """
    steps = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    if isinstance(values, list) and not any(isinstance(value, (Mapping, list)) for value in values):
        yield place, json.dumps(values)
    elif steps or isinstance(values, Mapping):
        for step, value in steps:
            yield from flat(value, f"{place}.{step}" if place else str(step))
    else:
        yield place, values


TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": Wandb, "mlflow": MLflow}


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
