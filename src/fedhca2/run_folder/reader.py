"""Reading a run from its files."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from fedhca2.errors import UserError, list_faults
from fedhca2.experiment import Experiment
from fedhca2.experiment.clients import ClientEntry, client_kind
from fedhca2.experiment.sources import read_config
from fedhca2.imports import NotAllowedError, is_allowed, is_import_path, only_allowed
from fedhca2.run_folder import folder
from fedhca2.run_folder.event_log import Event, read_events, read_matrices
from fedhca2.run_folder.files import Array as Array
from fedhca2.run_folder.files import mapping, read_arrays, read_json
from fedhca2.run_folder.result import Result, Scores
from fedhca2.run_folder.schema import CONFIG_HEAD, TASK_FACTS, check_event, check_scores, task_from, validate
from fedhca2.tasks import TASKS, TaskSet
from fedhca2.tasks.built_in import DeclaredTask, make_task_set

SAMPLES_OF = "samples of a run"


@dataclass(frozen=True)
class RunFiles:
    """A run's folder, finished or not."""

    path: Path
    _by_kind: dict[str, list[Event]] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def open(cls, path: str | Path) -> "RunFiles":
        """Open the run in this folder; raises UserError if there is none."""
        files = cls(Path(path))
        if not files.begun:
            raise UserError(path, f"expected a run's folder, got no {folder.CONFIG} in it")
        return files

    @property
    def begun(self) -> bool:
        """Whether the folder belongs to a run."""
        return self.config_file.is_file()

    @property
    def finished(self) -> bool:
        """Whether the run is finished."""
        return (self.path / folder.RESULT).is_file()

    @property
    def config_file(self) -> Path:
        """The resolved config, a file that `Experiment.load` reads."""
        return self.path / folder.CONFIG

    @cached_property
    def config(self) -> dict[str, Any]:
        """The resolved config."""
        config = mapping(self.config_file, read_config(self.config_file))
        validate(CONFIG_HEAD, config, str(self.config_file))
        return config

    def experiment(self, overrides: list[str] | None = None) -> Experiment:
        """The run's experiment, with `key=value` overrides; raises UserError if it names code that is not allowed."""
        _ = self.config  # what it refuses
        with only_allowed(self.config_file):
            return Experiment.load(self.config_file, overrides)

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The run's config with the defaults of settings that are newer than the run.

        A config that this version cannot read, for example because its code has moved, stays as it is.
        """
        try:
            return self.experiment().to_dict()
        except UserError:
            return self.config

    @cached_property
    def recorded_result(self) -> Result | None:
        """The content of `result.json`, for which no task needs to be known; None before the end of the run.

        What another version left out is empty, or as configured.
        """
        values = self._mapping(folder.RESULT)
        if values is None:
            return None
        lost = {key: self.config[key] for key in ("name", "rounds", "seed") if key not in values}
        return validate(Result, values | lost, str(self.path / folder.RESULT))

    @cached_property
    def result(self) -> Result | None:
        """The outcome of the run; None before its end."""
        if self.recorded_result is not None:
            check_scores(self.recorded_result, self.task_set, str(self.path / folder.RESULT))
        return self.recorded_result

    @property
    def outcome(self) -> Result:
        """The outcome of the run; raises UserError before its end."""
        if self.result is None:
            raise UserError(self.path, f"expected a finished run, got no {folder.RESULT} in it")
        return self.result

    @property
    def partition(self) -> dict[str, Any] | None:
        """Every client's images by id, {client: {data, train, val, dealt}}; empty if only the sites know them."""
        return self._mapping(folder.PARTITION)

    @property
    def flower_note(self) -> dict[str, Any] | None:
        """For a run over Flower: its name for sites in `run`, the `engine`, and Flower's own number in `flower_run`."""
        return self._mapping(folder.FLOWER)

    def _mapping(self, name: str) -> dict[str, Any] | None:
        """The content of a file of JSON, if there is one."""
        path = self.path / name
        return mapping(path, read_json(path)) if path.is_file() else None

    @property
    def events_file(self) -> Path:
        """The file of events, one line of JSON each."""
        return self.path / folder.EVENTS

    @property
    def events(self) -> list[Event]:
        """All events of the run, in order; those with large matrices only name their files."""
        return self._check_tasks(read_events(self.events_file))

    def of(self, kind: str) -> list[Event]:
        """The events of one kind with their matrices; no others are parsed."""
        if kind not in self._by_kind:
            events = self._check_tasks(read_events(self.events_file, kind))
            self._by_kind[kind] = [read_matrices(self.path, event) for event in events]
        return self._by_kind[kind]

    def _check_tasks(self, events: Iterable[Event], path: Path | None = None) -> list[Event]:
        """The same events; raises UserError if one is about a task that the config does not declare."""
        checked = list(events)
        for task in {event["task"] for event in checked if event["event"] in ("metric", "loss")}:
            if task not in self.task_set:
                raise UserError(path or self.events_file, f"expected a known task, got {task!r:.60}")
        return checked

    @property
    def everyone_failed(self) -> bool:
        """Whether the last round used no client's update, because training or the replies failed."""
        rounds, clients = self.of("round"), {event["client"] for event in self.of("profile")}
        return bool(rounds and clients) and clients <= set(rounds[-1]["refused"])

    @cached_property
    def task_set(self) -> TaskSet:
        """The built-in tasks, and those that the config declares, if the folder has one.

        Their code is imported only if it is allowed; otherwise what the run recorded of them has to do.
        """
        if not self.begun:
            return TASKS
        tasks = mapping(f"{self.config_file}: tasks", self.config.get("tasks", {}))
        try:
            declared = {name: DeclaredTask.model_validate(task) for name, task in tasks.items()}
            kinds = {name: task.kind for name, task in declared.items()}
            foreign = {name for name, kind in kinds.items() if is_import_path(kind) and not is_allowed(kind)}
            facts = self._mapping(folder.TASK_FACTS) if foreign else None  # older runs have none
            for name, each in (facts or {}).items():
                validate(TASK_FACTS, each, f"{self.path / folder.TASK_FACTS}: {name!r:.60}")
            by_facts = {name: task_from(name, each) for name, each in (facts or {}).items() if name in foreign}
            with only_allowed(self.config_file):
                loaded = make_task_set(declared | dict.fromkeys(by_facts, DeclaredTask(kind="regression")))
        except NotAllowedError:
            raise
        except ValidationError as error:
            raise UserError.of(fault.within(f"{self.config_file}: tasks") for fault in list_faults(error)) from None
        except ValueError as error:
            raise UserError(self.config_file, f"tasks: {error}") from None
        return TaskSet([*loaded.values(), *by_facts.values()]) if by_facts else loaded

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.config["method"]["name"])

    @property
    def rounds(self) -> int:
        """The planned number of rounds."""
        return int(self.config["rounds"])

    @cached_property
    def tasks(self) -> dict[str, tuple[str, ...]]:
        """Every client's tasks, in the order of the config."""
        if self.result:
            return {client: tuple(tasks) for client, tasks in self.result.clients.items()}
        tasks_of: dict[str, dict[str, None]] = {}
        for event in (*self.of("loss"), *self.of("metric")):
            tasks_of.setdefault(event["client"], {})[event["task"]] = None
        return {client: tuple(tasks) for client, tasks in tasks_of.items()}

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The kind of every client: its data set and tasks."""
        return {client: client_kind(self.dataset(client), names) for client, names in self.tasks.items()}

    @property
    def several_of_a_kind(self) -> bool:
        """Whether some clients have the same data set and tasks."""
        return len(set(self.kinds.values())) < len(self.kinds)

    def dataset(self, client: str) -> str:
        """A client's data set; a client that never reported one gets a data set of its own."""
        return self._datasets.get(client, client)

    @cached_property
    def _datasets(self) -> dict[str, str]:
        if reported := {event["client"]: event["dataset"] for event in self.of("profile")}:
            return reported
        entries = validate(list[ClientEntry], self.config.get("clients", []), f"{self.config_file}: clients")
        return {name: entry.data for entry in entries for name in entry.named}

    @cached_property
    def baseline(self) -> "RunFiles":
        """The Local baseline trained within the run, if there is one."""
        return RunFiles(self.path / folder.BASELINE_FOLDER)

    @property
    def recorded_baseline(self) -> Scores | None:
        """The scores of a baseline from another run, if there is one."""
        path = self.path / folder.BASELINE
        return validate(Scores, read_json(path), str(path)) if path.is_file() else None

    def baseline_events(self, kind: str) -> list[Event]:
        """The `metric` or `loss` events of the Local baseline, from this run or another."""
        if self.baseline.begun:
            return self.baseline.of(kind)
        path = self.path / folder.BASELINE_METRICS
        if not path.is_file():
            return []
        try:
            events = [check_event(mapping(path, event), str(path)) for event in read_json(path)]
        except TypeError as error:
            raise UserError(path, f"expected a list of events, got {error}") from None
        return self._check_tasks((event for event in events if event["event"] == kind), path)

    @property
    def checkpoints(self) -> set[Path]:
        """All checkpoints, including the baseline's."""
        return set(self.path.glob(f"**/{folder.CHECKPOINTS}/round-*"))

    def model_file(self, client: str) -> Path:
        """A client's trained model in a finished run."""
        return self.path / folder.MODELS / f"{client}.safetensors"

    @property
    def outcome_files(self) -> dict[str, Path]:
        """The files to keep of a finished run, by their names in its folder: config, result, page, models."""
        names = (folder.CONFIG, folder.RESULT, folder.PAGE)
        paths = [*(self.path / name for name in names), *(self.path / folder.MODELS).glob("*.safetensors")]
        return {path.relative_to(self.path).as_posix(): path for path in sorted(paths) if path.is_file()}

    def samples_file(self, client: str) -> Path:
        """The file of a client's sample images."""
        return self.path / folder.SAMPLES / f"{client}.npz"

    def samples(self, client: str) -> dict[str, Array]:
        """A client's sample images, labels and predictions; empty if it has none."""
        path = self.samples_file(client)
        if client != Path(client).name or not path.is_file():  # a name is not a path
            return {}
        samples = read_arrays(path, SAMPLES_OF)
        try:
            if samples:  # only images have samples
                _require_samples(samples)
        except (KeyError, ValueError) as error:
            raise UserError(path, f"expected {SAMPLES_OF}, got {error}") from None
        return samples


def _require_samples(arrays: Mapping[str, Array]) -> None:
    """Raise ValueError unless these are images [S, 3, H, W] with as many maps [S, C, H, W] or vectors [S, C]."""
    image = arrays["image"]
    if image.ndim != 4 or image.shape[1] != 3 or not image.size or image.dtype != np.uint8:
        raise ValueError(f"image: expected bytes [S, 3, H, W], got {image.dtype} {image.shape}")
    for name, array in arrays.items():
        if name.partition(".")[0] not in ("label", "before", "after"):
            continue
        fits = len(array) == len(image) and (array.ndim == 2 or array.shape[2:] == image.shape[2:])
        if not fits or array.dtype.kind not in "iuf":
            raise ValueError(f"{name}: expected numbers for {image.shape}, got {array.dtype} {array.shape}")
