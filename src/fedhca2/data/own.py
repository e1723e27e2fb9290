"""Data sets of a user's own, by import path: a class (or function) that takes `split` and settings.

What it makes needs three members: `labels`, the class names by task; `len()`; and `[index]`, which gives one sample as
{"image": …, task: …}. `size`, the height and width of the network's input, is its fourth, or a setting. The class's
parameters are the data set's settings in an experiment, with their types and defaults.

Inputs that are no images are arrays of two dimensions, such as channels × readings: the class then has their `shape`
instead of `size`, and a sample is {"input": …, task: …}. They are neither normalised nor augmented.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property, partial
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Self, Union, get_args, get_origin, get_type_hints

from pydantic import create_model
from torch import Tensor

from fedhca2.data.archive import CACHE_BYTES, Cache
from fedhca2.data.arrays import to_array, to_image, to_label
from fedhca2.data.config import DataConfig, Place
from fedhca2.data.dataset import Dataset, Sample, Split
from fedhca2.data.files import BrokenFileError, FileError, MissingFileError
from fedhca2.data.transforms import require_fit
from fedhca2.imports import load
from fedhca2.tasks import LabelSpace, get_task, skips_empty

Names = Sequence[str] | int | LabelSpace | None  # how a data set describes the labels of a task


def label_space(names: Names) -> LabelSpace:
    """The label space of a task, from the names of its classes, their number, or nothing if it has none.

    >>> label_space(["table", "chair"]).classes, label_space(3).classes, label_space(None).classes
    (2, 3, None)
    """
    if isinstance(names, LabelSpace):
        return names
    if names is None or isinstance(names, int):
        return LabelSpace(names)
    return LabelSpace(names=tuple(map(str, names)))


def label_spaces(labels: Any) -> dict[str, LabelSpace]:
    """The label spaces of all tasks of a data set."""
    try:
        return {str(task): label_space(names) for task, names in labels.items()}
    except (AttributeError, TypeError):
        raise ValueError(f"labels should be class names by task, found {labels!r:.200}") from None


class OwnData(DataConfig):
    """The settings of a data set of a user's own."""

    cache: bool = False
    made_by: ClassVar[Callable[..., Any]]
    settings: ClassVar[tuple[str, ...]]  # the fields that it is made with
    declared: ClassVar[
        Mapping[str, LabelSpace] | None
    ]  # the labels of its class; unknown if only its objects have some

    @property
    def are_arrays(self) -> bool:
        """Whether inputs are arrays, and no images."""
        return hasattr(self.made_by, "shape")

    @cached_property
    def labels(self) -> Mapping[str, LabelSpace]:
        """The tasks that it has labels for."""
        return self.open("train").labels if self.declared is None else self.declared

    def open(self, split: Split) -> Dataset:
        """Open one split; raises FileError if that is not possible."""
        given = {name: getattr(self, name) for name in self.settings}
        for name, value in given.items():
            if isinstance(value, Path) and not value.exists():
                raise MissingFileError(value, f"{name!r} should be here, found nothing")
        try:
            made = self.made_by(split=split, **given)
            if lacking := _missing_member(made):
                raise BrokenFileError(Path(self.kind), lacking)
            if hasattr(made, "load"):
                return made  # type: ignore[no-any-return]
            return OwnSamples(made, self.size, split, cache=self.cache and "cache" not in self.settings)
        except (FileError, MemoryError):
            raise
        except Exception as error:  # it may raise anything
            raise BrokenFileError(Path(self.kind), f"should open its {split} split, found {_told(error)}") from error


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
    if "size" not in fields and isinstance(size, Sequence):
        fields["size"] = (DataConfig.model_fields["size"].annotation, size)
    labels = getattr(made_by, "labels", None)
    name: str = kind.rpartition(":")[2]
    made = create_model(name, __base__=OwnData, **fields)
    made.made_by, made.settings = staticmethod(made_by), settings
    made.declared = label_spaces(labels) if isinstance(labels, Mapping) else None
    return made


def _fields(kind: str, made_by: Any) -> dict[str, Any]:
    """The settings that a class or function takes, as fields of a model: {name: (type, default)}."""
    constructor = vars(made_by).get("__init__", made_by.__init__) if isinstance(made_by, type) else made_by  # type: ignore[misc]
    hints: dict[str, Any] = get_type_hints(constructor, include_extras=True)
    hints.update(root=Path, size=DataConfig.model_fields["size"].annotation)
    fields: dict[str, Any] = {}
    for name, parameter in inspect.signature(made_by).parameters.items():
        if name == "split" or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        if name not in ("size", "cache") and (name in OwnData.model_fields or hasattr(OwnData, name)):
            raise ValueError(f"{kind}: a parameter should not be called {name!r}, which has a meaning of its own")
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[name] = (_placed(hints.get(name, Any)), default)
    return fields


def _takes_split(found: Any) -> bool:
    try:
        return callable(found) and "split" in inspect.signature(found).parameters
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


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"


class OwnSamples:
    """One split of a user's data set, with every sample converted and checked."""

    def __init__(self, held: Any, size: tuple[int, int], split: Split, *, cache: bool) -> None:
        self.held = held
        self.size = size
        self.split = split
        self.are_arrays = hasattr(held, "shape")
        self.labels = label_spaces(held.labels)
        self.ids: Sequence[str] = [str(id) for id in getattr(held, "ids", range(len(held)))]
        if len(set(self.ids)) != len(held) or not self.ids:
            found = f"{len(held)} images and {len(set(self.ids))} different ids"
            raise BrokenFileError(Path(split), f"should have some images, each with an id of its own, found {found}")
        self._cache = Cache(CACHE_BYTES if cache else 0)

    def __len__(self) -> int:
        return len(self.ids)

    def for_share(self, indices: Sequence[int]) -> Self:
        """Return itself: all clients see the same."""
        return self

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All images, or for a client with only a task that skips empty ones, those with something to label."""
        if not skips_empty(tasks):
            return range(len(self))
        task = get_task(tasks[0])
        return [i for i in range(len(self)) if task.known(self.load(i, tasks)[task.name]).any()]

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """An image with the labels of these tasks."""
        read = cache(lambda: self._read(index))
        sample: Sample = {}
        for name in ("image", *tasks):
            convert = partial(self._converted, index, name, read, sample)
            sample[name] = self._cache.get((str(index), name), convert)
        return sample

    def _converted(self, index: int, name: str, read: Callable[[], Mapping[str, Any]], sample: Sample) -> Tensor:
        found = read()
        key = "input" if name == "image" and self.are_arrays else name
        if key not in found:
            listed = ", ".join(map(str, found)) or "nothing"
            raise BrokenFileError(self._place(index), f"should have {key!r}, found {listed}")
        try:
            if key == "input":
                return to_array(found[key], self.size)
            if name == "image":
                image = to_image(found[name])
                if self.split == "val":
                    require_fit({"image": image}, self.size)
                return image
            height, width = sample["image"].shape[-2:]
            return to_label(found[name], get_task(name), self.labels[name], (height, width))
        except ValueError as error:
            raise BrokenFileError(self._place(index), f"{key!r} {error}") from error

    def _read(self, index: int) -> Mapping[str, Any]:
        try:
            found = self.held[index]
        except (FileError, MemoryError):
            raise
        except Exception as error:  # it may raise anything
            raise BrokenFileError(self._place(index), f"should be a sample, found {_told(error)}") from error
        if not isinstance(found, Mapping):
            fault = f"should be {{'image': …, task: …}}, found {type(found).__name__}"
            raise BrokenFileError(self._place(index), fault)
        return found

    def _place(self, index: int) -> Path:
        own = f" ({self.ids[index]})" if self.ids[index] != str(index) else ""
        return Path(f"{self.split}[{index}]{own}")
