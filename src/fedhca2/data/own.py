"""A user's own data sets, by import path: a class (or function) that takes `split` and settings.

What it makes needs three members: `labels`, the class names by task; `len()`; and `[index]`, which gives one sample as
{"image": …, task: …}. `size`, the height and width of the network's input, is its fourth, or a setting. The class's
parameters are the data set's settings in an experiment, with their types and defaults; one of type `TaskSet` gets the
tasks that the experiment knows.

Inputs other than images are arrays of two dimensions, such as channels × readings: the class then has their `shape`
instead of `size`, and a sample is {"input": …, task: …}. They are neither normalised nor augmented.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

from pydantic import Field, create_model

from fedhca2.data.config import CACHE, ROOT, SIZE, DataConfig, Place
from fedhca2.data.dataset import Dataset, Split
from fedhca2.data.files import BrokenFileError, FileError, MissingFileError
from fedhca2.data.own_samples import OwnSamples, label_spaces
from fedhca2.imports import load, parameters, told
from fedhca2.tasks import TASKS, LabelSpace, TaskSet


class OwnData(DataConfig):
    """The settings of a user's own data set."""

    cache: Annotated[bool, Field(description=CACHE)] = False
    made_by: ClassVar[Callable[..., Any]]
    settings: ClassVar[tuple[str, ...]]  # the fields that it is made with
    takes_tasks: ClassVar[tuple[str, ...]]  # parameters that get the experiment's tasks
    declared: ClassVar[
        Mapping[str, LabelSpace] | None
    ]  # the labels of its class; unknown if only its objects have some

    @property
    def are_arrays(self) -> bool:
        """Whether inputs are arrays rather than images."""
        return hasattr(self.made_by, "shape")

    @property
    def labels(self) -> Mapping[str, LabelSpace] | None:
        """The tasks that it has labels for; None if only its objects know."""
        return self.declared

    def open(self, split: Split, tasks: TaskSet = TASKS) -> Dataset:
        """Open one split; raises FileError if that is not possible."""
        given = {name: getattr(self, name) for name in self.settings}
        for name, value in given.items():
            if isinstance(value, Path) and not value.exists():
                raise MissingFileError(value, f"{name!r} should be here, found nothing")
        try:
            made = self.made_by(split=split, **given, **dict.fromkeys(self.takes_tasks, tasks))
            if lacking := _missing_member(made):
                raise BrokenFileError(Path(self.kind), lacking)
            if hasattr(made, "load"):
                return made  # type: ignore[no-any-return]
            cached = self.cache and "cache" not in self.settings
            return OwnSamples(made, self.size, split, cache=cached, fits=not self.resize, tasks=tasks)
        except (FileError, MemoryError):
            raise
        except Exception as error:  # it may raise anything
            raise BrokenFileError(Path(self.kind), f"should open its {split} split, found {told(error)}") from error


@cache
def settings_class(kind: str) -> type[DataConfig]:
    """The settings of the data set that an import path names; raises ValueError if there is no such thing."""
    return settings_of(kind, load(kind, "a class or function of a data set, with a parameter `split`", _takes_split))


def settings_of(kind: str, made_by: Any) -> type[DataConfig]:
    """The settings of the data set that a class or function makes; raises ValueError if it cannot make one."""
    if isinstance(made_by, type) and (lacking := _missing_member(made_by)):
        raise ValueError(f"{kind} {lacking}")
    fields = _fields(kind, made_by)
    settings = tuple(fields)
    size = getattr(made_by, "shape", getattr(made_by, "size", None))
    if isinstance(size, int | float | str):
        raise ValueError(f"{kind}: `size` should be height and width, as in (32, 32), found {size!r}")
    if "size" not in fields and isinstance(size, Sequence):
        fields["size"] = (DataConfig.model_fields["size"].annotation, Field(size, description=SIZE))
    labels = getattr(made_by, "labels", None)
    name: str = kind.rpartition(":")[2]
    made = create_model(name, __base__=OwnData, **fields)
    made.made_by, made.settings = staticmethod(made_by), settings
    made.takes_tasks = tuple(name for name, (hint, _) in parameters(made_by).items() if hint is TaskSet)
    made.declared = label_spaces(labels) if isinstance(labels, Mapping) else None
    return made


def _fields(kind: str, made_by: Any) -> dict[str, Any]:
    """The settings that a class or function takes, as fields of a model: {name: (type, default)}."""
    own: dict[str, Any] = {"root": Path, "size": DataConfig.model_fields["size"].annotation}
    about = {"root": ROOT, "size": SIZE}
    fields: dict[str, Any] = {}
    for name, (hint, default) in parameters(made_by).items():
        if name == "split" or hint is TaskSet:
            continue
        if name not in ("size", "cache") and (name in OwnData.model_fields or hasattr(OwnData, name)):
            raise ValueError(f"{kind}: a parameter should not be called {name!r}, which has a meaning of its own")
        fields[name] = (_placed(own.get(name, hint)), Field(default, description=about.get(name)))
    return fields


def _takes_split(value: Any) -> bool:
    try:
        return callable(value) and "split" in inspect.signature(value).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def _placed(hint: Any) -> Any:
    """The same type, with paths beside the experiment's file."""
    if hint is Path:
        return Place
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_placed, get_args(hint)))]  # noqa: UP007
    return hint


def _missing_member(made: Any) -> str:
    """What a data set, or its class, lacks; empty if nothing. Only an object may have to know its labels."""
    needed = {"__len__": "its length", "__getitem__": "a sample by its index"}
    if not isinstance(made, type):
        needed["labels"] = "class names by task"
    lacking = [name for name in needed if not hasattr(made, name) and not hasattr(made, "load")]
    return f"should have {lacking[0]}, {needed[lacking[0]]}, found none" if lacking else ""
