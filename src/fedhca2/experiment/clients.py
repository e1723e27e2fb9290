"""Clients as declared in a config, and the expanded list of them."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, ValidationInfo, field_validator, model_validator

from fedhca2.config import Config, suggest
from fedhca2.config_errors import describe
from fedhca2.errors import UserError
from fedhca2.experiment.sources import merged
from fedhca2.imports import folders, located
from fedhca2.models import ModelConfig
from fedhca2.models.config import with_classes
from fedhca2.tasks import LabelSpace, Task, TaskSet

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


def name_fault(name: str) -> str:
    """What is wrong with a client's name; empty if nothing is. It becomes part of file names on every machine.

    >>> name_fault("klinik-1"), name_fault("klinik-münchen")[-20:]
    ('', "got 'klinik-münchen'")
    """
    wanted = "the letters a to z and A to Z, digits, '-', '_' and '.', and a letter or digit first"
    return "" if NAME.fullmatch(name) else f"a name: expected {wanted}, got {name!r}"


@dataclass(frozen=True)
class ClientSpec:
    """One client."""

    name: str
    data: str
    tasks: tuple[str, ...]
    epochs: int
    model: ModelConfig

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

    data: Annotated[str, Field(description="name of its data set")]
    tasks: Annotated[tuple[str, ...] | None, Field(min_length=1, description="of one client")] = None
    split: Annotated[
        tuple[str, ...] | None, Field(min_length=1, description="instead of `tasks`: a client for each of these")
    ] = None
    name: Annotated[
        str | None, Field(description="by default the data set's name, with the task if `split` is used")
    ] = None
    copies: Annotated[int, Field(ge=1, le=10_000, description="number of clients of each kind")] = 1
    epochs: Annotated[int, Field(ge=1, description="local epochs per round")] = 1
    model: Annotated[
        dict[str, Any] | None, Field(description="its own model: settings that replace those of `model`")
    ] = None

    @field_validator("model")
    @classmethod
    def _paths_are_beside_the_experiment(cls, model: dict[str, Any] | None, info: ValidationInfo) -> Any:
        return with_classes(model, lambda path: located(path, folders(info))) if model else model

    @field_validator("name")
    @classmethod
    def _name_is_plain(cls, name: str | None) -> str | None:
        if name is not None and (fault := name_fault(name)):
            raise ValueError(fault)
        return name

    @model_validator(mode="after")
    def _tasks_or_split(self) -> "ClientEntry":
        if (self.tasks is None) == (self.split is None):
            raise ValueError("a client should have either 'tasks' or 'split'")
        names = self.tasks or self.split or ()
        if len(set(names)) < len(names):
            raise ValueError(f"a task should be listed once, found {', '.join(names)}")
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
        """List the clients that this entry stands for; `model` is the experiment's."""
        own = _own_model(model, self.model) if self.model else model
        return [ClientSpec(name, self.data, tasks, self.epochs, own) for name, tasks in self.named.items()]


def _own_model(model: ModelConfig, changes: Mapping[str, Any]) -> ModelConfig:
    """The experiment's model with these changes; raises UserError."""
    base = model.model_dump()
    encoder = changes.get("encoder")
    if isinstance(encoder, Mapping) and "weights" in encoder:
        base["encoder"]["sha256"] = None  # of the experiment's file
    try:
        return ModelConfig.model_validate(merged(base, changes))
    except ValidationError as error:
        raise UserError(describe(error, "model")) from None


def _channels_fault(data: str, task: Task, space: LabelSpace) -> list[str]:
    """A line if a data set does not say how many classes a task has, or too many."""
    try:
        task.channels_for(space)
    except ValueError as error:
        return [f"data.{data}: {error}; they are in its `labels`, or of kind csv in its `classes`"]
    return []


def expand(
    entries: Sequence[ClientEntry],
    labels: Mapping[str, Mapping[str, LabelSpace] | None],
    model: ModelConfig,
    tasks: TaskSet,
) -> list[ClientSpec]:
    """List all clients, checked against the labels of the data sets; None where these are not known."""
    lines: list[str] = []
    specs: list[ClientSpec] = []
    for i, entry in enumerate(entries):
        if entry.data not in labels:
            lines.append(
                f"clients[{i}].data: {entry.data!r} is not a data set of this experiment. {suggest(entry.data, labels)}"
            )
            continue
        key = "tasks" if entry.tasks else "split"
        for task in entry.tasks or entry.split or ():
            known = labels[entry.data]
            if known is not None and task not in known:
                hint = suggest(task, known)
                lines.append(f"clients[{i}].{key}: {task!r} is not a task of data set {entry.data!r}. {hint}")
            elif task not in tasks:
                hint = f"should be declared in `tasks`, for example as `{task}: regression`, found nothing"
                lines.append(f"clients[{i}].{key}: {task!r} {hint}")
            elif known is not None:
                lines += _channels_fault(entry.data, tasks[task], known[task])
        try:
            specs += entry.expand(model)
        except UserError as error:
            lines += [f"clients[{i}].{line}" for line in error.lines]
    for name, count in Counter(spec.name for spec in specs).items():
        if count > 1:
            lines.append(f"clients: {count} clients are called {name!r}; give each a 'name', or use 'copies'")
    if lines:
        raise UserError(dict.fromkeys(lines))
    return specs
