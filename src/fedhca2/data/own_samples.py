"""One split of a user's own data set, behind the interface that all data sets have.

Samples may be numpy arrays, torch tensors or Pillow images of any number type; they become checked tensors. Arrays and
Pillow images are [H, W] or [H, W, C], tensors [H, W] or [C, H, W], as is usual in these libraries.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedhca2.data.cache import CACHE_BYTES, Cache
from fedhca2.data.dataset import Sample, Split
from fedhca2.data.files import MOST_PIXELS, BrokenFileError, FileError
from fedhca2.data.transforms import require_fit
from fedhca2.imports import told
from fedhca2.labels import IGNORE
from fedhca2.tasks import TASKS, LabelSpace, Task, TaskSet
from fedhca2.words import counted

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


class OwnSamples:
    """One split of a user's data set, with every sample converted and checked."""

    def __init__(
        self, held: Any, size: tuple[int, int], split: Split, *, cache: bool, fits: bool = True, tasks: TaskSet = TASKS
    ) -> None:
        """`fits`: images of the validation split should not be larger than the network's input."""
        self.held, self.tasks = held, tasks
        self.fits = fits
        self.size = size
        self.split = split
        self.are_arrays = hasattr(held, "shape")
        self.labels = label_spaces(held.labels)
        if self.are_arrays and "input" in self.labels:
            fault = "labels: expected tasks with other names than 'input', the key of a sample's array, got 'input'"
            raise BrokenFileError(Path(split), fault)
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
        if not self.tasks.skips_empty(tasks):
            return range(len(self))
        task = self.tasks[tasks[0]]
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
        given = read()
        key = "input" if name == "image" and self.are_arrays else name
        if key not in given:
            listed = ", ".join(map(str, given)) or "nothing"
            raise BrokenFileError(self._place(index), f"should have {key!r}, found {listed}")
        try:
            if name == "image" and self.are_arrays:
                return checked_array(given[key], self.size)
            if name == "image":
                image = checked_image(given[name])
                if self.split == "val" and self.fits:
                    require_fit({"image": image}, self.size)
                return image
            height, width = sample["image"].shape[-2:]
            return _to_label(given[name], self.tasks[name], self.labels[name], (height, width))
        except ValueError as error:
            raise BrokenFileError(self._place(index), f"{key!r} {error}") from error
        except OSError as error:  # Pillow reads a file when its pixels are needed
            raise BrokenFileError(self._place(index), f"{name!r} should be readable, found {told(error)}") from error

    def _read(self, index: int) -> Mapping[str, Any]:
        try:
            given = self.held[index]
        except (FileError, MemoryError):
            raise
        except Exception as error:  # it may raise anything
            raise BrokenFileError(self._place(index), f"should be a sample, found {told(error)}") from error
        if not isinstance(given, Mapping):
            fault = f"should be {{'image': …, task: …}}, found {type(given).__name__}"
            raise BrokenFileError(self._place(index), fault)
        return given

    def _place(self, index: int) -> Path:
        own = f" ({self.ids[index]})" if self.ids[index] != str(index) else ""
        return Path(f"{self.split}[{index}]{own}")


def checked_image(value: Any) -> Tensor:
    """An image as uint8 [3, H, W]: bytes, or floats from 0 to 1, in one or three channels."""
    if isinstance(value, Image.Image):
        _require_few_pixels(value)
        value = value.convert("RGB")
    planes = _planes(value)
    if len(planes) not in (1, 3):
        raise ValueError(f"should have 1 or 3 channels, found {_shape(planes)}")
    low, high = _bounds(planes)
    if planes.is_floating_point():
        if low < 0 or high > 1:
            raise ValueError(f"should have floats from 0 to 1, or bytes, found {low:g} to {high:g}")
        planes = (planes * 255).round()
    elif low < 0 or high > 255:
        raise ValueError(f"should have values from 0 to 255, found {low:g} to {high:g}")
    return planes.to(torch.uint8).expand(3, -1, -1).contiguous()


def checked_array(value: Any, shape: tuple[int, ...]) -> Tensor:
    """An input that is not an image, as float32 of this shape."""
    tensor = _tensor(value).float()
    if tuple(tensor.shape) != shape:
        raise ValueError(f"should be {'×'.join(map(str, shape))}, the data set's `shape`, found {_shape(tensor)}")
    _bounds(tensor)
    return tensor


def _to_label(value: Any, task: Task, space: LabelSpace, size: tuple[int, int]) -> Tensor:
    """A task's label for an image of this size, float32: a map [C, H, W], of classes in uint8, or a vector [C]."""
    label = _planes(value) if task.output == "map" else _vector(value)
    channels = task.label_channels_for(space)
    wanted = (channels, *size) if task.output == "map" else (channels,)
    if tuple(label.shape) != wanted:
        if task.output == "map":
            raise ValueError(f"should be {'×'.join(map(str, wanted))} like its image, found {_shape(label)}")
        if task.grouped_by == "class":
            hint = "; of a one-hot label, that is argmax()" if label.shape == (space.classes,) else ""
            raise ValueError(f"should be the number of one class, found {counted(label.numel(), 'number')}{hint}")
        raise ValueError(f"should be {counted(channels, 'number')}, found {counted(label.numel(), 'number')}")
    known = label[task.known(label)]
    lowest, highest = task.label_range(space)
    low, high = _bounds(known)
    if len(known) and (low < lowest or high > highest):
        unknown = IGNORE if task.output == "map" else "NaN"
        outside = low if low < lowest else high
        raise ValueError(f"should be from {lowest:g} to {highest:g}, or {unknown} if unknown, found {outside:g}")
    if task.grouped_by == "class" and (known != known.round()).any():
        raise ValueError("should be the whole numbers of classes, found a fraction")
    return label.to(torch.uint8) if task.output == "map" and task.grouped_by == "class" else label.float()


def _planes(value: Any) -> Tensor:
    """Anything with two or three dimensions as [C, H, W]."""
    tensor = _tensor(value)
    if tensor.ndim not in (2, 3) or 0 in tensor.shape:
        raise ValueError(f"should be H×W with or without channels, found {_shape(tensor)}")
    if tensor.ndim == 2:
        return tensor[None]
    return tensor if isinstance(value, Tensor) else tensor.permute(2, 0, 1)


def _tensor(value: Any) -> Tensor:
    """Any array of numbers as a tensor of its own, with 0 and 1 for truth values."""
    if isinstance(value, Tensor):
        return value.byte() if value.dtype == torch.bool else value.detach().cpu()
    if isinstance(value, Image.Image):
        _require_few_pixels(value)
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"should be an array of numbers, found {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch has few operations for larger unsigned numbers
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    return torch.from_numpy(np.array(array, copy=True))  # writable, and not shared


def _require_few_pixels(image: Image.Image) -> None:
    """Raise ValueError if an image, which may not have been decoded yet, is too large."""
    if image.width * image.height > MOST_PIXELS:
        raise ValueError(f"should have at most {MOST_PIXELS} pixels, found {image.height}×{image.width}")


def _vector(value: Any) -> Tensor:
    tensor = _tensor(value)
    return tensor.float().reshape(-1) if tensor.ndim < 2 else tensor.float()


def _bounds(values: Tensor) -> tuple[float, float]:
    """The smallest and the largest value, if all are finite."""
    if not values.numel():
        return 0.0, 0.0
    if values.is_floating_point() and not values.isfinite().all():
        raise ValueError(f"should be finite, found {'NaN' if values.isnan().any() else 'infinity'}")
    return float(values.min()), float(values.max())


def _shape(tensor: Tensor) -> str:
    return "×".join(map(str, tensor.shape)) or "one number"
