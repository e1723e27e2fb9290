"""A user's own data sets, by import path: a class (or function) that takes `split` and settings.

What it makes needs three members: `labels`, the class names by task; `len()`; and `[index]`, which gives one sample as
{"image": …, task: …}. `size`, the height and width of the network's input, is its fourth, or a setting. The class's
parameters are the data set's settings in an experiment, with their types, defaults, and meanings from its docstring.

Inputs other than images are arrays of one to four dimensions, such as channels × readings: the class then has their
`shape` instead of `size`, which may be empty until a split is open, and a sample is {"input": …, task: …}. With a
method `encode`, predictions take what it turns into such an array.
"""

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from math import nan
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, ClassVar, Union, get_args, get_origin

import numpy as np
import torch
from PIL import Image
from pydantic import Field, create_model
from torch import Tensor

from fedhca2.data.config import Cached, DataConfig, InputSize, LocatedPath, Root, Shape
from fedhca2.data.dataset import Cache, Dataset, SameForAll, Sample, Size, Split, Stacked
from fedhca2.data.files import MAX_PIXELS, BrokenFileError, MissingFileError, reading
from fedhca2.data.transforms import check_fit, collate, own_size
from fedhca2.imports import load, one_line, parameters
from fedhca2.labels import IGNORE
from fedhca2.live import is_live
from fedhca2.tasks import TASKS, LabelSpace, Task, TaskSet
from fedhca2.words import counted

PARAM = re.compile(r":param (\w+): (.+?)\n(?=\s*(?::|\n|$))", re.DOTALL)  # a parameter in a docstring


class OwnData(DataConfig):
    """The settings of a user's own data set."""

    cache: Cached = False
    made_by: ClassVar[Callable[..., Any]]
    settings: ClassVar[tuple[str, ...]]  # the fields that it is made with
    takes_tasks: ClassVar[tuple[str, ...]]  # parameters that get the experiment's tasks
    declared: ClassVar[Mapping[str, LabelSpace] | None]  # its class's labels; unknown if only its objects have some

    @property
    def labels(self) -> Mapping[str, LabelSpace] | None:
        """The tasks that it has labels for; None if only its objects know."""
        return self.declared

    def open(self, split: Split, tasks: TaskSet = TASKS) -> Dataset:
        """Open one split; raises FileError if that is not possible."""
        values = {name: getattr(self, name) for name in self.settings}
        for name, value in values.items():
            if isinstance(value, Path) and not value.exists():
                raise MissingFileError(value, f"expected {name!r} here, got nothing")
        with reading(self.kind, f"to open its {split} split"):
            data = self.made_by(split=split, **values, **dict.fromkeys(self.takes_tasks, tasks))
            _check_members(self.kind, data)
            if hasattr(data, "load"):
                return data  # type: ignore[no-any-return]
            cached = self.cache and "cache" not in self.settings
            return OwnSamples(data, self.size or data.shape, split, cache=cached, fits=not self.resize, tasks=tasks)


def settings_class(kind: str) -> type[DataConfig]:
    """The settings of the data set that an import path names; raises ValueError if there is no such thing."""
    make = settings_of if is_live(kind) else _cached_settings_of  # what is live may be another object next time
    return make(kind, load(kind, "a class or function of a data set, with a parameter `split`", _takes_split))


def choose_by_split(name: str, train: Any, val: Any) -> Callable[[Split], Any]:
    """The function of a data set of this name whose splits are these objects, with their labels and size."""

    def factory(split: Split) -> Any:
        return train if split == "train" else val

    factory.__qualname__ = name
    for member in ("labels", "size", "shape"):
        if hasattr(train, member):
            setattr(factory, member, getattr(train, member))
    return factory


def settings_of(kind: str, factory: Any) -> type[DataConfig]:
    """The settings of the data set that a class or function makes; raises ValueError if it cannot make one."""
    if isinstance(factory, type):
        _check_members(kind, factory)
    fields = _fields(kind, factory)
    settings = tuple(fields)
    size = getattr(factory, "shape", getattr(factory, "size", None))
    if isinstance(size, int | float | str):
        raise BrokenFileError(kind, f"`size`: expected height and width, as in (32, 32), got {size!r}")
    if "size" not in fields and hasattr(factory, "shape"):
        fields["size"] = (Shape, (size or None) if isinstance(size, Sequence) else None)
    elif "size" not in fields and isinstance(size, Sequence):
        fields["size"] = (InputSize, size)
    if "cache" not in fields and hasattr(factory, "cache"):
        fields["cache"] = (Cached, factory.cache)
    labels = getattr(factory, "labels", None)
    name: str = kind.rpartition(":")[2]
    config = create_model(name, __base__=OwnData, **fields)
    config.made_by, config.settings, config.are_arrays = staticmethod(factory), settings, hasattr(factory, "shape")
    config.takes_tasks = tuple(name for name, (hint, _) in parameters(factory).items() if hint is TaskSet)
    config.declared = label_spaces(labels) if isinstance(labels, Mapping) else None
    return config


_cached_settings_of = cache(settings_of)


def _fields(kind: str, factory: Any) -> dict[str, Any]:
    """The settings that a class or function takes, as fields of a model, with the meanings that its docstring has."""
    own: dict[str, Any] = {"root": Root, "size": InputSize}
    meanings = {name: " ".join(text.split()) for name, text in PARAM.findall(f"{factory.__doc__}\n")}
    fields: dict[str, Any] = {}
    for name, (hint, default) in parameters(factory).items():
        if name == "split" or hint is TaskSet:
            continue
        if name not in ("size", "cache") and (name in OwnData.model_fields or hasattr(OwnData, name)):
            raise BrokenFileError(kind, f"expected other names of parameters, got {name!r}, which has a meaning here")
        field_type = own.get(name, _with_located_paths(hint))
        about = Field(description=meanings[name].rstrip(".")) if name in meanings else None
        fields[name] = (Annotated[field_type, about] if about else field_type, default)
    return fields


def _takes_split(value: Any) -> bool:
    try:
        return callable(value) and "split" in inspect.signature(value).parameters
    except (TypeError, ValueError):  # some built-in functions have no signature
        return False


def _with_located_paths(hint: Any) -> Any:
    """The same type, with relative paths that start at the folder of the experiment's file."""
    if hint is Path:
        return LocatedPath
    if get_origin(hint) in (Union, UnionType):
        return Union[tuple(map(_with_located_paths, get_args(hint)))]  # noqa: UP007
    return hint


def _check_members(kind: str, data: Any) -> None:
    """Raise an error if a data set, or its class, has not all members; only a data set itself needs `labels`."""
    needed = {"__len__": "its length", "__getitem__": "a sample by its index"}
    if not isinstance(data, type):
        needed["labels"] = "class names by task"
    for name, meaning in needed.items():
        if not hasattr(data, name) and not hasattr(data, "load"):
            raise BrokenFileError(kind, f"expected {name}, {meaning}, got none")


def label_spaces(labels: Any) -> dict[str, LabelSpace]:
    """The label spaces of all tasks, from the names of classes, their number, or nothing if a task has none.

    >>> {task: space.classes for task, space in label_spaces({"semseg": ["table", "chair"], "depth": None}).items()}
    {'semseg': 2, 'depth': None}
    """
    spaces = {}
    try:
        for task, names in labels.items():
            if names is None or isinstance(names, int):
                names = LabelSpace(names)
            spaces[str(task)] = names if isinstance(names, LabelSpace) else LabelSpace(names=tuple(map(str, names)))
    except (AttributeError, TypeError):
        raise ValueError(f"labels: expected class names by task, got {labels!r:.200}") from None
    return spaces


class OwnSamples(SameForAll):
    """One split of a user's data set, with every sample converted and checked."""

    def __init__(
        self, data: Any, size: Size, split: Split, *, cache: bool, fits: bool = True, tasks: TaskSet = TASKS
    ) -> None:
        """:param fits: images of the validation split should not be larger than the network's input."""
        self.data, self.tasks, self.fits, self.size, self.split = data, tasks, fits, size, split
        self.are_arrays = hasattr(data, "shape")
        self.key = "input" if self.are_arrays else "image"  # of the input in a sample
        self.labels = label_spaces(data.labels)
        if self.are_arrays and "input" in self.labels:
            fault = "labels: expected tasks with other names than 'input', the key of a sample's array, got 'input'"
            raise BrokenFileError(split, fault)
        self.ids: Sequence[str] = [str(id) for id in getattr(data, "ids", range(len(data)))]
        if len(set(self.ids)) != len(data) or not self.ids:
            actual = f"{len(data)} images and {len(set(self.ids))} different ids"
            raise BrokenFileError(split, f"expected some images, each with an id of its own, got {actual}")
        self._cache = Cache() if cache and not self.are_arrays else Cache(0)
        self._stacked = Stacked(len(self.ids)) if cache and self.are_arrays else None

    def __len__(self) -> int:
        return len(self.ids)

    def usable(self, tasks: Sequence[str]) -> Sequence[int]:
        """All images, or for a client with only a task that skips empty ones, those with something to label."""
        if not self.tasks.skips_empty(tasks):
            return range(len(self))
        task = self.tasks[tasks[0]]
        return [i for i in range(len(self)) if task.known(self.load(i, tasks)[task.name]).any()]

    def load(self, index: int, tasks: Sequence[str]) -> Sample:
        """An image with the labels of these tasks."""
        id = self.ids[index]
        where = f"{self.split}[{index}]" + (f" ({id})" if id != str(index) else "")
        read = cache(partial(self._read, index, where))
        sample: Sample = {}
        for name in ("image", *tasks):
            sample[name] = self._cache.get((str(index), name), partial(self._convert, name, where, read, sample))
        return sample

    def batch(self, indices: Sequence[int], tasks: Sequence[str]) -> Sample:
        """Several samples, stacked."""
        if self._stacked is None:
            return collate([self.load(index, tasks) for index in indices])
        return self._stacked.batch(indices, ("image", *tasks), lambda index: self.load(index, tasks))

    def _read(self, index: int, where: str) -> Mapping[str, Any]:
        with reading(where, "a sample"):
            sample = self.data[index]
        if not isinstance(sample, Mapping):
            raise BrokenFileError(where, f"expected {{'{self.key}': …, task: …}}, got {type(sample).__name__}")
        return sample

    def _convert(self, name: str, where: str, read: Callable[[], Mapping[str, Any]], sample: Sample) -> Tensor:
        raw, key = read(), self.key if name == "image" else name
        if name == "image" and key not in raw:
            raise BrokenFileError(where, f"expected {key!r}, got {', '.join(map(str, raw)) or 'nothing'}")
        try:
            if name != "image":
                return _to_label(raw.get(key), self.tasks[name], self.labels[name], sample["image"].shape[-2:])
            if key == "input":
                return checked_array(raw[key], self.size)
            image = checked_image(raw[key])
            if self.split == "val" and self.fits:
                check_fit(own_size({"image": image}), self.size)
            return image
        except ValueError as error:
            raise BrokenFileError(where, f"{key!r}: {error}") from error
        except OSError as error:  # Pillow reads a file when its pixels are needed
            raise BrokenFileError(where, f"{key!r}: expected something readable, got {one_line(error)}") from error


def checked_image(value: Any) -> Tensor:
    """An image as uint8 [3, H, W]: bytes, or floats from 0 to 1, in one or three channels."""
    if isinstance(value, Image.Image):
        _check_pixels(value)
        value = value.convert("RGB")
    planes = _planes(value)
    if len(planes) not in (1, 3):
        raise ValueError(f"expected 1 or 3 channels, got {_shape(planes)}")
    low, high = _bounds(planes)
    if planes.is_floating_point():
        if low < 0 or high > 1:
            raise ValueError(f"expected floats from 0 to 1, or bytes, got {low:g} to {high:g}")
        planes = (planes * 255).round()
    elif low < 0 or high > 255:
        raise ValueError(f"expected values from 0 to 255, got {low:g} to {high:g}")
    return planes.to(torch.uint8).expand(3, -1, -1).contiguous()


def checked_array(value: Any, shape: tuple[int, ...]) -> Tensor:
    """An input that is not an image, as float32 of this shape."""
    tensor = _tensor(value).float()
    if tuple(tensor.shape) != shape:
        raise ValueError(f"expected {'×'.join(map(str, shape))}, the data set's `shape`, got {_shape(tensor)}")
    _bounds(tensor)
    return tensor


def _to_label(value: Any, task: Task, space: LabelSpace, size: Sequence[int]) -> Tensor:
    """A task's label for an image of this size, float32: a map [C, H, W], of classes in uint8, or a vector [C]."""
    is_map, is_class = task.output == "map", task.grouped_by == "class"
    channels = task.label_channels_for(space)
    shape = (channels, *size) if is_map else (channels,)
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        value = torch.full(shape, nan)
    label = _planes(value) if is_map else _tensor(value).float()
    label = label if label.ndim else label[None]
    if tuple(label.shape) != shape:
        if is_map:
            raise ValueError(f"expected {'×'.join(map(str, shape))} like its image, got {_shape(label)}")
        hint = "; of a one-hot label, that is argmax()" if is_class and label.shape == (space.classes,) else ""
        form = "the number of one class" if is_class else counted(channels, "number")
        raise ValueError(f"expected {form}, got {counted(label.numel(), 'number')}{hint}")
    if is_map and label.is_floating_point():
        label = label.masked_fill(label.isnan(), IGNORE)
    known_values = label[task.known(label)]
    lowest, highest = task.label_range(space)
    low, high = _bounds(known_values)
    if len(known_values) and (low < lowest or high > highest):
        unknown, outside = IGNORE if is_map else "NaN", low if low < lowest else high
        raise ValueError(f"expected values from {lowest:g} to {highest:g}, or {unknown} if unknown, got {outside:g}")
    if is_class and (known_values != known_values.round()).any():
        raise ValueError("expected the whole numbers of classes, got a fraction")
    return label.to(torch.uint8) if is_map and is_class else label.float()


def _planes(value: Any) -> Tensor:
    """Anything with two or three dimensions as [C, H, W]."""
    tensor = _tensor(value)
    if tensor.ndim not in (2, 3) or 0 in tensor.shape:
        raise ValueError(f"expected H×W with or without channels, got {_shape(tensor)}")
    if tensor.ndim == 2:
        return tensor[None]
    return tensor if isinstance(value, Tensor) else tensor.permute(2, 0, 1)


def _tensor(value: Any) -> Tensor:
    """Any array of numbers as a tensor of its own, with 0 and 1 for truth values."""
    if isinstance(value, Tensor):
        return value.byte() if value.dtype == torch.bool else value.detach().cpu()
    if isinstance(value, Image.Image):
        _check_pixels(value)
    if isinstance(value, np.ma.MaskedArray):
        value = np.ma.filled(value.astype(np.float64), nan)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"expected an array of numbers, got {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch has few operations for larger unsigned numbers
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    return torch.from_numpy(np.array(array, copy=True))  # writable, and not shared


def _check_pixels(image: Image.Image) -> None:
    """Raise ValueError if an image, which may not have been decoded yet, is too large."""
    if image.width * image.height > MAX_PIXELS:
        raise ValueError(f"expected at most {MAX_PIXELS} pixels, got {image.height}×{image.width}")


def _bounds(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest value, if all are finite."""
    if not values.numel():
        return 0.0, 0.0
    if values.is_floating_point() and not values.isfinite().all():
        raise ValueError(f"expected finite values, got {'NaN' if values.isnan().any() else 'infinity'}")
    return float(values.min()), float(values.max())


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"
