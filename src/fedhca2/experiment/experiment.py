"""An experiment as data: everything a run depends on, checked before training starts."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self, Unpack

import yaml
from pydantic import Field, PrivateAttr, ValidationError, ValidationInfo, field_validator, model_validator

from fedhca2.clients import Privacy, Training
from fedhca2.config import Config, suggest
from fedhca2.data import AnyData, Dataset, Split
from fedhca2.data.config import DataSets
from fedhca2.data.dataset import Size
from fedhca2.data.files import FileError
from fedhca2.errors import Fault, UserError, list_faults
from fedhca2.experiment.clients import ClientEntry, ClientSpec, expand
from fedhca2.experiment.settings import (
    CheckpointPlan,
    Diagnostics,
    GivenSettings,
    GuardBounds,
    Objects,
    Participation,
    SecureAggregation,
)
from fedhca2.experiment.sources import apply_overrides, merge_files, merged, name_files, read_files
from fedhca2.imports import folders, is_import_path, resolve_path
from fedhca2.live import Live, find
from fedhca2.methods import Method, resolve
from fedhca2.models import ModelConfig
from fedhca2.models.pretrained import digest, is_file
from fedhca2.tasks import LabelSpace, TaskSet
from fedhca2.tasks.built_in import DeclaredTask, make_task_set
from fedhca2.words import counted


class Experiment(Config):
    """A complete, validated description of a federation: data sets, clients, a model, a method and its training.

    >>> street = {"kind": "scenes", "domain": "outdoor"}
    >>> experiment = Experiment(data={"street": street}, clients=[{"data": "street", "split": ["semseg", "sal"]}])
    >>> [spec.name for spec in experiment.specs]
    ['street-semseg', 'street-sal']

    `load` reads one from a file, `replace` and `with_method` return changed copies. A mistake raises UserError.

    :param data: data sets by name: settings with a `kind`; a class or function with a parameter `split`; or a pair of
        objects for training and validation.
    :param clients: a mapping for each, with the name of its `data` and its `tasks`, or `split`: a client for each.
    :param method: a name, a mapping with a name and settings, or a `Method`.
    :param model: settings of encoder, decoder and head.
    :param training: settings of local training, such as `batch_size` and `learning_rate`.
    :param tasks: your own tasks by name.
    :param rounds: how often clients train and exchange.
    :param seed: seed of the split, of initial values and of shuffling.
    :param baseline: whether to train each client alone as well, which Δm needs.
    :param evaluate_every: rounds between evaluations; 0: only at the end. `fedhca2 config show` lists all settings.
    """

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$",
        description="names the experiment and its runs; by default the file's name",
    )
    title: str = Field("", description="a title of one line")
    label: str | None = Field(
        None, max_length=60, description="its name in tables of several runs; by default the method's"
    )
    belongs_to: tuple[str, ...] = Field((), description="tables and figures of the papers")
    seed: int = Field(
        0, ge=0, lt=2**31, description="seed for partitioning, initial values, shuffling and augmentation"
    )
    rounds: int = Field(100, ge=1, description="number of rounds: train, exchange, aggregate")
    method: dict[str, Any] = Field(description="a name, and settings that replace its defaults")
    methods: dict[str, dict[str, Any]] | None = Field(
        None, description="settings of methods by name, wherever one is run: in a comparison, or as `method`"
    )
    baseline: bool = Field(False, description="also train a local baseline, to compare with")
    evaluate_every: int = Field(0, ge=0, description="rounds between evaluations; 0: only at the end")
    select: Literal["last", "best"] = Field(
        "last", description="the model that counts: each client's last one, or its best one on the validation images"
    )
    patience: int | None = Field(
        None, ge=1, description="stop after this many evaluations in a row without a better mean on validation images"
    )
    diagnostics: Diagnostics | None = Field(None, description="measure who helps whom; by default, nothing is measured")
    devices: tuple[str, ...] = Field(
        (),
        description="devices that clients train on, one client at a time on each entry; by default the CPU, or all "
        "GPUs, twice if models are small",
    )
    model: ModelConfig = ModelConfig()
    training: Training = Training()
    metrics: dict[str, str] = Field(default_factory=dict, description="metrics that replace the tasks' own, by task")
    skip_broken: bool = Field(False, description="skip unreadable images and labels, and name them")
    participation: Participation = Participation()
    privacy: Privacy = Privacy()
    secure_aggregation: SecureAggregation | None = Field(
        None, description="over Flower: the server only gets sums of rows"
    )
    guard: GuardBounds = GuardBounds()
    checkpoints: CheckpointPlan = CheckpointPlan()
    tasks: dict[str, DeclaredTask] = Field(
        default_factory=dict, description="tasks besides the built-in ones, by name: a kind, and settings"
    )
    data: dict[str, AnyData] = Field(min_length=1, description="data sets by name")
    clients: tuple[ClientEntry, ...] = Field(min_length=1, description="who takes part")

    _data_sets: DataSets | None = PrivateAttr(default=None)
    _live: list[Live | None] = PrivateAttr(default_factory=list)  # kept, so that their paths stay valid

    def __init__(self, folders: Sequence[Path] = (), /, **settings: Unpack[GivenSettings]) -> None:
        """Check all settings; relative paths are looked up in the folders, and then in the working directory."""
        objects = Objects()
        try:
            context = {"folders": folders}
            self.__pydantic_validator__.validate_python(objects.named(settings), self_instance=self, context=context)
        except ValidationError as error:
            raise UserError.of(list_faults(error)) from None
        if faults := list(self._find_faults()):
            raise UserError.of(faults)
        self._live = [find(path) for path in self.own_code]

    @model_validator(mode="before")
    @classmethod
    def _method_by_name(cls, values: Any, info: ValidationInfo) -> Any:
        if not isinstance(values, dict):
            return values
        method, methods = values.get("method", {}), values.get("methods")
        method = {"name": method} if isinstance(method, str) else method
        if isinstance(methods, dict):
            methods = {_locate_method(name, info): settings for name, settings in methods.items()}
        if isinstance(method, dict):
            name = _locate_method(method.get("name", "fedhca2"), info)
            shared = _settings_for(name, methods) if isinstance(methods, dict) else {}
            method = merged({**shared, "name": name}, {**method, "name": name})
        return {**values, "method": method, **({"methods": methods} if methods is not None else {})}

    @field_validator("tasks")
    @classmethod
    def _locate_tasks(cls, tasks: dict[str, DeclaredTask], info: ValidationInfo) -> dict[str, DeclaredTask]:
        located = {name: task.resolve_path(folders(info)) for name, task in tasks.items()}
        make_task_set(located)  # raises an error if one cannot be found
        return located

    @cached_property
    def task_set(self) -> TaskSet:
        """The built-in tasks, and those that the experiment declares."""
        return make_task_set(self.tasks)

    @property
    def method_name(self) -> str:
        """The method's name."""
        return str(self.method["name"])

    @cached_property
    def resolved_method(self) -> Method:
        """The method with its settings."""
        settings = dict(self.method)
        if not isinstance(settings["name"], str):
            raise UserError("method.name", f"expected a name, got {settings['name']!r}")
        try:
            return resolve(settings.pop("name"), settings).over(self.rounds)
        except ValueError as error:
            raise UserError("method", str(error)) from None

    @property
    def own_code(self) -> list[str]:
        """The import paths of everything that the user brings along."""
        named = [self.method_name, *(self.methods or ()), *(data.kind for data in self.data.values())]
        named += [task.kind for task in self.tasks.values()]
        named += [part.kind for spec in self.specs for part in spec.model.own_parts.values()]
        return [path for path in dict.fromkeys(named) if is_import_path(path)]

    def resolve(self, like: Self | None = None) -> Self:
        """The same experiment, which opens each data set once, together with all its variants.

        It shares what is open with the resolved experiment `like`, if there is one. Otherwise a new one opens afresh,
        since files may have changed, and a resolved one is returned as it is.
        """
        if like is None and self._data_sets is not None:
            return self
        return self._share(DataSets() if like is None else like._data_sets)

    def _share(self, data_sets: DataSets | None) -> Self:
        copy = self.model_copy()
        vars(copy).pop("labels", None)  # of files that may have changed
        copy._data_sets = data_sets
        return copy

    def open(self, name: str, split: Split) -> Dataset:
        """One split of a data set; raises UserError if that is not possible."""
        data_sets = self._data_sets or DataSets()
        try:
            return data_sets.open(self.data[name], split, self.task_set)
        except FileError as error:
            raise UserError(f"data.{name}", str(error)) from None

    def size_of(self, name: str) -> Size:
        """The height and width of a data set's images, or the shape of its arrays; to know it, some must be opened."""
        return self.data[name].size or self.open(name, "train").size

    @cached_property
    def labels(self) -> Mapping[str, Mapping[str, LabelSpace]]:
        """The labels of the data sets that clients use. To know them, some must be opened.

        Raises UserError if that is not possible, or if there are none for the tasks of a client.
        """
        labels = {
            name: self.open(name, "train").labels if (declared := self.data[name].labels) is None else declared
            for name in dict.fromkeys(spec.data for spec in self.specs)
        }
        self._specs_for(labels)
        return labels

    @cached_property
    def specs(self) -> list[ClientSpec]:
        """All clients, checked against those labels of data sets that are known without opening them."""
        return self._specs_for({name: data.labels for name, data in self.data.items()})

    def _specs_for(self, labels: Mapping[str, Mapping[str, LabelSpace] | None]) -> list[ClientSpec]:
        """All clients; raises UserError if they, or partitions, do not fit these labels. None fits everything."""
        tasks = self.task_set
        specs, faults = expand(self.clients, labels, self.model, tasks), list[Fault]()
        for name, spaces in labels.items():
            clients = [spec.name for spec in specs if spec.data == name]
            labelled = [tasks[task] for task in (tasks if spaces is None else spaces) if task in tasks]
            if clients and (fault := self.data[name].partition.fault(clients, labelled)):
                faults.append(Fault(*f"data.{name}.partition.{fault}".split(": ", 1)))
        if faults:
            raise UserError.of(faults)
        return specs

    @property
    def kinds(self) -> dict[str, str]:
        """The kind of every client."""
        return {spec.name: spec.kind for spec in self.specs}

    @classmethod
    def load(cls, source: str | Path = "demo", overrides: str | list[str] | None = None) -> Self:
        """Load an experiment from a YAML file or by the name of a built-in one; raises UserError if it has faults.

        >>> experiment = Experiment.load("demo", ["rounds=5", "method=fedper"])
        >>> experiment.rounds, experiment.method_name, len(experiment.specs)
        (5, 'fedper', 9)

        :param source: the path of a YAML file, or a name that `fedhca2 experiments` lists.
        :param overrides: settings to change, such as `"clients.0.epochs=2"`.
        """
        files = read_files(source)
        values = apply_overrides(merge_files(files), [overrides] if isinstance(overrides, str) else overrides or [])
        try:
            return cls.parse(values, [file.folder for file in files if file.folder])
        except UserError as error:
            if overrides:  # which may be at fault
                raise
            raise type(error).of(name_files(error.faults, files)) from None

    @classmethod
    def parse(cls, values: Any, folders: Sequence[Path] = ()) -> Self:
        """Build an experiment from plain data; raises UserError if it has faults.

        Relative paths are looked for in these folders, and then in the working directory.
        """
        if not isinstance(values, dict):
            raise UserError("config", f"expected a mapping of keys to values, got {values!r:.200}")
        return cls(folders, **{str(key): value for key, value in values.items()})

    def _find_faults(self) -> Iterator[Fault]:
        """Settings that contradict each other."""
        specs = self.specs
        if wrong := _wrong_methods(self.methods or {}):
            yield from wrong
            return
        names, method = [spec.name for spec in specs], self.resolved_method
        chosen = [("participation.availability", name) for name in self.participation.availability]
        late = self.participation.late
        chosen += [("participation.late.delays", name) for name in (late.delays if late else ())]
        if late and self.secure_aggregation:
            yield Fault("participation.late", "does not work with secure_aggregation, whose sums are of one round")
        if late and self.diagnostics:
            yield Fault("participation.late", "does not work with diagnostics, which compare models of one round")
        for key, name in [*chosen, *(("guard.images", name) for name in self.guard.images)]:
            if name not in names:
                yield Fault(key, f"expected names of clients, got {name!r}. {suggest(name, names)}")
        yield from _unknown_metrics(self.metrics, self.task_set)
        yield from self._selection_faults()
        if method.batch_norm == "average" and self.privacy.noise:
            yield Fault("privacy.noise", "does not work with method.batch_norm 'average': variances become negative")
        if self.training.batch_size < 2 and any(spec.model.decoder.kind == "deeplab" for spec in specs):
            expected = "at least 2 for deeplab, which normalises over the batch"
            yield Fault("training.batch_size", f"expected {expected}, got 1")
        if self.diagnostics and self.privacy.noise:
            yield Fault("diagnostics", "does not work with privacy.noise, which does not cover the losses it measures")
        if self.secure_aggregation:
            yield from self.secure_aggregation.faults(method, self.privacy.deviation)

    def _selection_faults(self) -> Iterator[Fault]:
        """Choices of models that have nothing to choose by, or that would be scored on what they were chosen by."""
        used = {spec.data: self.data[spec.data].test for spec in self.specs}
        for name in [name for name, share in used.items() if not share] if any(used.values()) else ():
            yield Fault(f"data.{name}.test", "expected test images, since other data sets have some, got none")
        for key in [*["select"] * (self.select == "best"), *["patience"] * bool(self.patience)]:
            if not self.evaluate_every:
                yield Fault(key, "expected evaluate_every of at least 1, since it chooses among evaluations, got 0")
            if not any(used.values()):
                expected = "expected test images to score the choice on, such as data.NAME.test: 0.5"
                yield Fault(key, f"{expected}, got none")
        if self.select == "best" and self.resolved_method.local.final_epochs:
            yield Fault("select", "expected last, since the method fine-tunes models at the end, got best")

    @property
    def tested(self) -> bool:
        """Whether final scores are on test images."""
        return any(self.data[spec.data].test for spec in self.specs)

    def with_method(self, name: str) -> Self:
        """The same experiment with another method in its settings from `methods`, and without a baseline."""
        return self.replace(method={"name": name}, baseline=False)

    def replace(self, **changes: Unpack[GivenSettings]) -> Self:
        """The same experiment with other settings, which are checked; it shares the data sets that are open.

        A mapping changes the settings that it names, as in a file: `replace(training={"batch_size": 4})`.
        """
        values = {name: getattr(self, name) for name in type(self).model_fields}
        return self.parse(merged(values, {**changes, "name": changes.get("name", self.name)}))._share(self._data_sets)

    @property
    def blank(self) -> Self:
        """The same experiment without initial weights, so that no file is needed."""
        return self.replace(model=self.model.blank, clients=tuple(entry.blank for entry in self.clients))

    def __setattr__(self, name: str, value: Any) -> None:
        if name in type(self).model_fields:
            expected = f"expected experiment.replace({name}=…), since an experiment does not change"
            raise UserError(name, f"{expected}, got an assignment")
        super().__setattr__(name, value)

    def __repr__(self) -> str:
        """A line, since all settings are long; `to_yaml` has them."""
        about = f"{counted(len(self.specs), 'client')}, {counted(self.rounds, 'round')}"
        return f"Experiment({self.name}: {self.method_name}, {about})"

    __str__ = __repr__

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain data that `parse` reads, with all defaults and the digest of a weights file filled in."""
        values = self.model_dump(mode="json", exclude_none=True)
        method = self.resolved_method.model_dump(mode="json", exclude={"reference"})
        methods = values.pop("methods", {})
        if others := {name: methods[name] for name in methods if name != self.method_name}:
            values["methods"] = others
        models = [values["model"], *(client.get("model", {}) for client in values["clients"])]
        for encoder in [model["encoder"] for model in models if "encoder" in model]:
            if is_file(Path(encoder.get("weights", "none"))):
                encoder["sha256"] = digest(encoder["weights"])
        return {**values, "method": {"name": self.method_name, **method}}

    def to_yaml(self) -> str:
        """The same as a YAML document."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False, allow_unicode=True)


def _locate_method(name: Any, info: ValidationInfo) -> Any:
    """A method's name; the file of a user's own method is looked for in the experiment's folder."""
    own = isinstance(name, str) and not Path(name.rpartition(":")[0]).exists()
    return resolve_path(name, folders(info)) if own else name


def _settings_for(name: Any, methods: Mapping[Any, Any]) -> Mapping[str, Any]:
    """The settings that `methods` has for a method; a file may be named by its path from anywhere."""
    by_path = {resolve_path(str(other), ()): settings for other, settings in methods.items()}
    settings = by_path.get(resolve_path(str(name), ()))
    return settings if isinstance(settings, Mapping) else {}


def _wrong_methods(methods: Mapping[str, Mapping[str, Any]]) -> list[Fault]:
    """Unknown methods, and methods with settings that they cannot have."""
    faults = []
    for name, settings in methods.items():
        try:
            resolve(name, settings)
        except ValueError as error:
            faults.append(Fault(f"methods.{name}", str(error).removeprefix(f"{name}: ")))
    return faults


def _unknown_metrics(metrics: Mapping[str, str], tasks: TaskSet) -> Iterator[Fault]:
    """Unknown tasks, and metrics that their task does not have."""
    for task, name in metrics.items():
        if task not in tasks:
            yield Fault("metrics", f"expected names of tasks, got {task!r}. {suggest(task, tasks)}")
        elif name not in tasks[task].metrics:
            hint = suggest(name, tasks[task].metrics)
            yield Fault(f"metrics.{task}", f"expected a metric of {task!r}, got {name!r}. {hint}")
