"""Trackers of experiments: TensorBoard, Weights & Biases, MLflow, and what a class of one's own needs to be one."""

import json
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, ClassVar, NamedTuple, Protocol

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
