"""Tasks that an experiment declares: another name for a built-in one, or a user's own by import path."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import Field, model_validator
from torch import nn

from fedhca2.config import Config, suggest
from fedhca2.imports import FORMS, is_import_path, load, located
from fedhca2.tasks import TASKS
from fedhca2.tasks.built_in import BUILT_IN
from fedhca2.tasks.task import Task

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
INPUT = "image"


class DeclaredTask(Config):
    """A task under a name that the experiment chooses; settings replace those of its kind."""

    kind: Annotated[str, Field(description=f"a built-in task, or {FORMS}")]
    title: Annotated[str | None, Field(description="its name in tables and figures")] = None
    weight: Annotated[float | None, Field(ge=0, description="of its loss in a client's total loss")] = None
    unit: Annotated[str | None, Field(description="of its scores")] = None

    @model_validator(mode="before")
    @classmethod
    def _kind_alone(cls, values: Any) -> Any:
        return {"kind": values} if isinstance(values, str) else values

    def located(self, folders: Iterable[Path]) -> Self:
        """The same with an import path that is valid anywhere."""
        return self.model_copy(update={"kind": located(self.kind, folders)})

    def task(self, name: str) -> Task:
        """The task under this name; raises ValueError if there is no such kind."""
        settings = self.model_dump(exclude={"kind"}, exclude_none=True)
        untitled = {"title": ""} if is_built_in(self.kind) else {}  # "People" says more than "Regression"
        return replace(self._found(), **untitled | settings, name=name)

    def _found(self) -> Task:
        if is_import_path(self.kind):
            own: Task = load(self.kind, "a Task", lambda each: isinstance(each, Task))
            return own
        if not is_built_in(self.kind):
            known = suggest(self.kind, [task.name for task in BUILT_IN])
            raise ValueError(f"kind should be a known task or {FORMS}, found {self.kind!r:.200}. {known}")
        return TASKS[self.kind]


DECLARED: dict[str, DeclaredTask] = {}  # how the tasks of TASKS that are not built in were declared


def is_built_in(name: str) -> bool:
    """Whether a task comes with the package."""
    return any(task.name == name for task in BUILT_IN)


def declare(tasks: Mapping[str, DeclaredTask]) -> None:
    """Make these tasks known in this process; the last declaration of a name counts.

    Raises ValueError if one has a bad name, or cannot be found.
    """
    for name, declared in tasks.items():
        if not NAME.fullmatch(name) or hasattr(nn.ModuleDict, name) or name == INPUT:
            raise ValueError(
                f"{name!r:.80} should be a name of letters, digits and '_' with no other meaning in Python"
            )
        if is_built_in(name):
            raise ValueError(f"{name!r} should be a new name, found one that is built in")
        try:
            TASKS[name], DECLARED[name] = declared.task(name), declared
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
