"""Sending a run's numbers and files to trackers: TensorBoard, W&B, MLflow, or a class of one's own."""

import json
import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, NamedTuple
from uuid import uuid4

from fedhca2.config import suggest
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.imports import FORMS, is_import_path, load, one_line
from fedhca2.reports.variants import flatten
from fedhca2.run_folder.event_log import Event
from fedhca2.run_folder.files import mapping, read_json, to_json
from fedhca2.run_folder.folder import TRACKING
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher
from fedhca2.whole_files import write_whole


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


class Tracker:
    """Takes the numbers and files of one run; here, every method does nothing.

    :param target: where to send them; raises ValueError if it cannot be used, and creates nothing.
    """

    def __init__(self, target: str) -> None: ...

    def start(self, run: TrackedRun) -> None:
        """The run starts or continues; all its numbers follow, also those from before it was interrupted."""

    def log(self, numbers: Sequence[Scalar]) -> None:
        """Take some numbers, in any order of rounds."""

    def keep(self, files: Mapping[str, Path]) -> None:
        """Take the files of a finished run, by their names within its folder."""

    def close(self, *, finished: bool) -> None:
        """Nothing follows; an unfinished run may be resumed later."""


def check_folder(path: Path) -> Path:
    """The absolute path of a folder, which may be missing; raises ValueError if it cannot be made or written to."""
    path = existing = path.absolute()
    try:
        while not existing.exists():
            existing = existing.parent
        TemporaryFile(dir=existing).close()  # for root, the permissions of folders such as /proc promise too much
    except OSError as error:
        raise ValueError(f"expected a folder that can be written to, got {existing}: {error.strerror}") from None
    return path


def import_extra(package: str, extra: str) -> Any:
    """Import an optional package; raises ValueError that says how to install it."""
    try:
        return import_module(package)
    except ImportError:
        raise ValueError(f"{extra} is not installed; run: pip install 'fedhca2[{extra}]'") from None


class TensorBoard(Tracker):
    """Event files for TensorBoard in a folder; other files are not taken."""

    def __init__(self, target: str) -> None:
        self._open = import_extra("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder = check_folder(Path(target))

    def start(self, run: TrackedRun) -> None:
        """Open a new file of events."""
        self._writer = self._open(str(self._folder))

    def log(self, numbers: Sequence[Scalar]) -> None:
        """Take some numbers."""
        for scalar in numbers:
            self._writer.add_scalar(scalar.tag, scalar.value, scalar.round)

    def close(self, *, finished: bool) -> None:
        """Write the remaining numbers."""
        self._writer.close()


class Wandb(Tracker):
    """A run in a project of Weights & Biases."""

    def __init__(self, target: str) -> None:
        self._wandb, self._project = import_extra("wandb", "wandb"), target

    def start(self, run: TrackedRun) -> None:
        """Begin the run, or continue it."""
        about = {"project": self._project, "name": run.name, "config": dict(run.config)}
        self._run = self._wandb.init(**about, id=run.id, resume="allow", allow_val_change=True)
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
        artefact = self._wandb.Artifact(f"run-{self._run.id}", type="run")
        for name, path in files.items():
            artefact.add_file(str(path), name=name)
        self._run.log_artifact(artefact)

    def close(self, *, finished: bool) -> None:
        """Send the remaining numbers."""
        self._run.finish(exit_code=0 if finished else 1)


class MLflow(Tracker):
    """A run in MLflow: in a folder, or at an address such as http://localhost:5000 or sqlite:///mlflow.db.

    Its parameters are the settings that the run started with, since MLflow cannot change them; config.yaml has the
    current ones. Numbers that MLflow has already are not sent again.
    """

    def __init__(self, target: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # it would report its use to its makers
        os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # it would ask for a database instead of a folder
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")  # else it looks for a server for four minutes
        mlflow = import_extra("mlflow", "mlflow")
        if target.startswith("sqlite:///"):  # MLflow would try for minutes to open it
            check_folder(Path(target.removeprefix("sqlite:///")).absolute().parent)
        is_address = "://" in target
        self._client = mlflow.MlflowClient(tracking_uri=target if is_address else check_folder(Path(target)).as_uri())
        self._entities = mlflow.entities
        if is_address:
            self._client.search_experiments(max_results=1)  # raises if it does not answer

    def start(self, run: TrackedRun) -> None:
        """Begin the run, or continue it."""
        name, tag = str(run.config.get("name", "fedhca2")), "fedhca2.run"
        existing = self._client.get_experiment_by_name(name)
        experiment = existing.experiment_id if existing else self._client.create_experiment(name)
        runs = self._client.search_runs([experiment], f"tags.`{tag}` = '{run.id}'", max_results=1)
        if runs:
            self._id = runs[0].info.run_id
            self._client.update_run(self._id, status="RUNNING")
        else:
            self._id = self._client.create_run(experiment, run_name=run.name, tags={tag: run.id}).info.run_id
            settings = flatten(run.config, lists=True)
            texts = {key: json.dumps(v) if isinstance(v, list) else str(v) for key, v in settings}
            self._send("params", [self._entities.Param(key, text[:500]) for key, text in texts.items()], 100)
        metrics = runs[0].data.metrics if runs else ()
        points = {key: self._client.get_metric_history(self._id, key) for key in metrics}
        self._sent = {(key, point.step, repr(point.value)) for key, own in points.items() for point in own}

    def _send(self, kind: str, values: Sequence[Any], most: int) -> None:
        """Send parameters or metrics, at most as many at once as every version of MLflow takes."""
        for i in range(0, len(values), most):
            self._client.log_batch(self._id, **{kind: values[i : i + most]})

    def log(self, numbers: Sequence[Scalar]) -> None:
        """Take some numbers."""
        now, metric = int(1000 * time.time()), self._entities.Metric
        new = {(tag, round, repr(float(value))): metric(tag, value, now, round) for tag, round, value in numbers}
        self._send("metrics", [point for key, point in new.items() if key not in self._sent], 1000)
        self._sent.update(new)

    def keep(self, files: Mapping[str, Path]) -> None:
        """Take the files as artefacts."""
        for name, path in files.items():
            self._client.log_artifact(self._id, str(path), str(Path(name).parent) if "/" in name else None)

    def close(self, *, finished: bool) -> None:
        """Mark the run as finished, or as killed, until it is resumed."""
        self._client.set_terminated(self._id, "FINISHED" if finished else "KILLED")


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


class Trackers(Watcher):
    """The trackers that a command asks for, as NAME=TARGET. They are checked at once, and start when the run does.

    A tracker that fails later does not stop the run: it gets nothing more, and a line says how to send the rest.
    """

    def __init__(self, run: Path, targets: Sequence[str]) -> None:
        self.run, self.failed = run, list[str]()
        self._trackers = {text: _open(text) for text in targets}
        self._started, self._waiting = False, list[Event]()

    def __enter__(self) -> "Trackers":
        return self

    def __exit__(self, *_: object) -> None:
        """Send what remains and, of a finished run, its Δm, settings, result, page and models; then close."""
        if not self._started:
            return
        files = RunFiles(self.run)
        self.send(self._waiting)
        if files.finished:
            if (gain := files.outcome.delta_m) is not None:
                self._each(lambda tracker: tracker.log([Scalar("delta_m", files.rounds, gain)]))
            self._each(lambda tracker: tracker.keep(files.outcome_files))
        self._each(lambda tracker: tracker.close(finished=files.finished))

    def start(self) -> None:
        """Tell every tracker about the run, which has its folder by now; raises UserError if one cannot start."""
        files, path = RunFiles.open(self.run), self.run / TRACKING
        if self._trackers and not path.is_file():
            write_whole(path, to_json({"id": uuid4().hex}).encode())
        if self._trackers:
            id = str(mapping(path, read_json(path)).get("id"))
            if not re.fullmatch("[0-9a-f]{32}", id):
                raise UserError(path, f"id: expected 32 hexadecimal digits, got {id!r:.80}")
            about = TrackedRun(self.run.absolute().name, id, files.config)
        for text, tracker in self._trackers.items():
            with _name_faults(text):
                tracker.start(about)
        self._started = True

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """Start with the run or its baseline, and send what was logged before an interruption."""
        if self._started:
            return
        try:
            self.start()
        except UserError as error:
            command = shlex.join(["fedhca2", "resume", str(self.run)])
            raise UserError("", f"{error}; the run has begun, continue it with: {command}") from error
        if self._trackers:
            self.send(RunFiles(self.run).events)

    def logged(self, run: Path, event: Event) -> None:
        """Send the events of the run, but not those of its baseline, at the end of each round."""
        if self._trackers and run == self.run:
            self._waiting.append(event)
            if event["event"] == "round":
                self.send(self._waiting)
                self._waiting = []

    def send(self, events: Iterable[Event]) -> None:
        """Send the numbers of these events."""
        numbers = [scalar for event in events for scalar in scalars(event)]
        if self._started and numbers:
            self._each(lambda tracker: tracker.log(numbers))

    def _each(self, act: Callable[[Tracker], None]) -> None:
        for text, tracker in list(self._trackers.items()):
            try:
                with _name_faults(text):
                    act(tracker)
            except UserError as error:
                del self._trackers[text]
                self.failed.append(text)
                command = shlex.join(["fedhca2", "watch", str(self.run), "--track", text])
                print(f"{error}; it gets nothing more, send the rest later: {command}", file=sys.stderr)


@contextmanager
def _name_faults(text: str) -> Iterator[None]:
    """Turn what a tracker raises into a UserError that names it."""
    try:
        yield
    except ValueError as error:
        raise UserError(f"--track {text}", str(error)) from None
    except Exception as error:  # other people's code raises anything
        raise UserError(f"--track {text}", one_line(error)) from error


def _open(text: str) -> Tracker:
    """Open the tracker that NAME=TARGET asks for; raises UserError if it cannot be used."""
    name, _, target = text.partition("=")
    with _name_faults(text):
        if not name or not target:
            raise ValueError(f"expected NAME=TARGET, got {text!r}")
        if name in TRACKERS:
            return TRACKERS[name](target)
        if not is_import_path(name):
            raise ValueError(f"unknown tracker {name!r}. {suggest(name, TRACKERS)}; or {FORMS}")
        methods = ("start", "log", "keep", "close")
        kind: type[Tracker] = load(
            name,
            "a class with start, log, keep and close",
            lambda value: isinstance(value, type) and all(hasattr(value, each) for each in methods),
        )
        return kind(target)
