"""Clients as declared in a config, and the expanded list of them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedhca2.config import Config, suggest
from fedhca2.errors import Fault, UserError, list_faults
from fedhca2.experiment.sources import merged
from fedhca2.imports import folders, resolve_path
from fedhca2.models import ModelConfig
from fedhca2.models.config import with_classes
from fedhca2.tasks import LabelSpace, TaskSet

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def name_fault(name: str) -> str:
    """What is wrong with a client's name; empty if nothing is. It becomes part of file names on every machine.

    >>> name_fault("klinik-1"), name_fault("klinik-münchen")[-20:]
    ('', "got 'klinik-münchen'")
    """
    expected = "the letters a to z and A to Z, digits, '-', '_' and '.', and a letter or digit first"
    return "" if NAME.fullmatch(name) else f"a name: expected {expected}, got {name!r}"


@dataclass(frozen=True)
class ClientSpec:
    """One client."""

    name: str
    data: str
    tasks: tuple[str, ...]
    epochs: int | None  # per round
    model: ModelConfig
    steps: int | None = None  # per round, if it has no epochs

    def steps_in_round(self, batches: int) -> int:
        """How many steps it takes in a round, if an epoch has this number of batches."""
        return self.steps or (self.epochs or 1) * batches

    @property
    def kind(self) -> str:
        """What it shares with clients of the same data set and tasks."""
        return client_kind(self.data, self.tasks)


def client_kind(data: str, tasks: Iterable[str]) -> str:
    """Name the kind of a client: clients with the same data set and tasks, in any order, are of one kind.

    >>> client_kind("indoor", ["semseg", "depth"])
    'indoor:depth+semseg'
    """
    return f"{data}:{'+'.join(sorted(tasks))}"


class ClientEntry(Config):
    """One entry of `clients`: a client with these `tasks`, or with `split` one single-task client per task."""

    data: str = Field(description="name of its data set")
    tasks: tuple[str, ...] | None = Field(None, min_length=1, description="tasks of this client")
    split: tuple[str, ...] | None = Field(
        None, min_length=1, description="instead of `tasks`: one client for each of these"
    )
    name: str | None = Field(None, description="by default the data set's name, with the task if `split` is used")
    copies: int = Field(1, ge=1, le=10_000, description="number of such clients, each with its own images")
    epochs: int | None = Field(None, ge=1, description="local epochs per round; 1 by default")
    steps: int | None = Field(
        None, ge=1, description="instead of `epochs`: batches per round; the next round continues the epoch"
    )
    model: dict[str, Any] | None = Field(None, description="its own model: settings that replace those of `model`")

    @field_validator("model")
    @classmethod
    def _locate_classes(cls, model: dict[str, Any] | None, info: ValidationInfo) -> Any:
        return with_classes(model, lambda path: resolve_path(path, folders(info))) if model else model

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str | None) -> str | None:
        if name is not None and (fault := name_fault(name)):
            raise ValueError(fault)
        return name

    @model_validator(mode="before")
    @classmethod
    def _one_epoch(cls, values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return values if values.get("steps") is not None else {**values, "epochs": values.get("epochs") or 1}

    @model_validator(mode="after")
    def _one_of_two(self) -> "ClientEntry":
        if self.epochs and self.steps:
            raise ValueError(f"expected either 'epochs' or 'steps', got {self.epochs} and {self.steps}")
        if (self.tasks is None) == (self.split is None):
            raise ValueError("expected either 'tasks' or 'split', got both or neither")
        names = self.tasks or self.split or ()
        if len(set(names)) < len(names):
            raise ValueError(f"expected each task once, got {', '.join(names)}")
        return self

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The tasks of every client that this entry stands for, by name."""
        base = self.name or self.data
        kinds = [(base, self.tasks)] if self.tasks else [(f"{base}-{task}", (task,)) for task in self.split or ()]
        copies = [f"-{copy + 1}" for copy in range(self.copies)] if self.copies > 1 else [""]
        return {f"{name}{copy}": tasks for name, tasks in kinds for copy in copies}

    @property
    def blank(self) -> Self:
        """The same entry without initial weights of its own."""
        encoder = (self.model or {}).get("encoder")
        if not isinstance(encoder, Mapping):
            return self
        unset = {key: value for key, value in encoder.items() if key != "sha256"} | {"weights": "none"}
        return self.model_copy(update={"model": {**(self.model or {}), "encoder": unset}})

    def expand(self, model: ModelConfig) -> list[ClientSpec]:
        """List the clients that this entry stands for; `model` is the experiment's. Raises UserError."""
        if self.model:
            base, encoder = model.model_dump(), self.model.get("encoder")
            if isinstance(encoder, Mapping) and "weights" in encoder:
                base["encoder"]["sha256"] = None  # of the experiment's file
            try:
                model = ModelConfig.model_validate(merged(base, self.model))
            except ValidationError as error:
                raise UserError.of(list_faults(error, "model")) from None
        specs = self.named.items()
        return [ClientSpec(name, self.data, tasks, self.epochs, model, self.steps) for name, tasks in specs]


def expand(
    entries: Sequence[ClientEntry],
    labels: Mapping[str, Mapping[str, LabelSpace] | None],
    model: ModelConfig,
    tasks: TaskSet,
) -> list[ClientSpec]:
    """List all clients; raises UserError if they do not fit the labels of the data sets, which are None if unknown."""
    faults: list[Fault] = []
    specs: list[ClientSpec] = []
    for i, entry in enumerate(entries):
        where = f"clients[{i}]"
        if entry.data not in labels:
            hint = suggest(entry.data, labels)
            faults.append(Fault(f"{where}.data", f"expected a data set of this experiment, got {entry.data!r}. {hint}"))
            continue
        faults += _task_faults(where, entry, labels[entry.data], tasks)
        try:
            specs += entry.expand(model)
        except UserError as error:
            faults += (fault.within(where, ".") for fault in error.faults)
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1:
            hint = "give each a 'name', or use 'copies'"
            faults.append(Fault("clients", f"expected different names, got {count} clients called {name!r}; {hint}"))
    weights: dict[str, set[str]] = {}  # by encoder
    for spec in specs:
        weights.setdefault(spec.model.encoder.title, set()).add(spec.model.encoder.weights)
    for name, files in weights.items() if not faults else ():
        if len(files) > 1:
            expected = f"expected the same weights at all clients with the encoder {name!r}"
            faults.append(Fault("clients", f"{expected}, got {', '.join(sorted(files))}"))
    if faults:
        raise UserError.of(dict.fromkeys(faults))
    return specs


def _task_faults(
    where: str, entry: ClientEntry, labels: Mapping[str, LabelSpace] | None, tasks: TaskSet
) -> Iterator[Fault]:
    """Tasks of a client that nobody declares, that its data set has no labels for, or whose classes are not known."""
    key = f"{where}.{'tasks' if entry.tasks else 'split'}"
    for task in entry.tasks or entry.split or ():
        if labels is not None and task not in labels:
            yield Fault(key, f"expected tasks of data set {entry.data!r}, got {task!r}. {suggest(task, labels)}")
        elif task not in tasks:
            yield Fault(key, f"expected {task!r} in `tasks`, for example as `{task}: regression`, got no declaration")
        elif labels is not None:
            try:
                tasks[task].channels_for(labels[task])
            except ValueError as error:
                hint = "they are in its `labels`, or of kind csv in its `classes`"
                yield Fault(f"data.{entry.data}", f"{error}; {hint}")
