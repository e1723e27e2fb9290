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
from fedhca2.tasks import TASKS, Task, TaskSet


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
        untitled = {"title": ""} if self.kind in TASKS else {}  # "People" says more than "Regression"
        return replace(self._found(), **untitled | settings, name=name)

    def _found(self) -> Task:
        if is_import_path(self.kind):
            own: Task = load(self.kind, "a Task", lambda each: isinstance(each, Task))
            return own
        if self.kind not in TASKS:
            known = suggest(self.kind, TASKS)
            raise ValueError(f"kind: expected a known task or {FORMS}, got {self.kind!r:.200}. {known}")
        return TASKS[self.kind]


def known_tasks(declared: Mapping[str, DeclaredTask]) -> TaskSet:
    """The built-in tasks and these; raises ValueError if one has a bad name, or cannot be found."""
    tasks = []
    for name, each in declared.items():
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name) or hasattr(nn.ModuleDict, name) or name == "image":
            raise ValueError(
                f"expected letters, digits and '_', and no name that Python or torch uses, got {name!r:.80}"
            )
        if name in TASKS:
            raise ValueError(f"expected a new name, got {name!r}, which is built in")
        try:
            tasks.append(each.task(name))
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    if not tasks:
        return TASKS  # the same set, so that what is known of it can be shared
    return TaskSet([*TASKS.values(), *tasks], {name: each.model_dump() for name, each in declared.items()})
