"""From what a data set of a user's own gives (numpy, torch or Pillow, any number type) to checked tensors.

numpy arrays and Pillow images are [H, W] or [H, W, C], torch tensors [H, W] or [C, H, W], as these libraries do it.
Whatever is wrong is a ValueError in one line.
"""

from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from fedhca2.labels import IGNORE
from fedhca2.tasks import LabelSpace, Task


def to_image(value: Any) -> Tensor:
    """An image as uint8 [3, H, W]: bytes, or floats from 0 to 1, in one or three channels."""
    planes = _planes(value.convert("RGB") if isinstance(value, Image.Image) else value)
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


def to_array(value: Any, shape: tuple[int, ...]) -> Tensor:
    """An input that is no image, as float32 of this shape."""
    tensor = _tensor(value).float()
    if tuple(tensor.shape) != shape:
        raise ValueError(f"should be {'×'.join(map(str, shape))}, the data set's `shape`, found {_shape(tensor)}")
    _bounds(tensor)
    return tensor


def to_label(value: Any, task: Task, space: LabelSpace, size: tuple[int, int]) -> Tensor:
    """A task's label for an image of this size, float32: a map [C, H, W], of classes in uint8, or a vector [C]."""
    label = _planes(value) if task.output == "map" else _vector(value)
    channels = task.label_channels_for(space)
    wanted = (channels, *size) if task.output == "map" else (channels,)
    if tuple(label.shape) != wanted:
        like = " like its image" if task.output == "map" else ""
        raise ValueError(f"should be {'×'.join(map(str, wanted))}{like}, found {_shape(label)}")
    known = label[task.known(label)]
    lowest, highest = task.label_range(space)
    low, high = _bounds(known)
    if len(known) and (low < lowest or high > highest):
        unknown = IGNORE if task.output == "map" else "NaN"
        found = low if low < lowest else high
        raise ValueError(f"should be from {lowest:g} to {highest:g}, or {unknown} if unknown, found {found:g}")
    if task.grouped_by == "class" and (known != known.round()).any():
        raise ValueError("should be the whole numbers of classes, found a fraction")
    return label.to(torch.uint8) if task.output == "map" and task.grouped_by == "class" else label.float()


def _planes(value: Any) -> Tensor:
    """Anything with two or three dimensions as [C, H, W]."""
    tensor = _tensor(value)
    if tensor.ndim == 2:
        return tensor[None]
    if tensor.ndim != 3 or 0 in tensor.shape:
        raise ValueError(f"should be H×W with or without channels, found {_shape(tensor)}")
    return tensor if isinstance(value, Tensor) else tensor.permute(2, 0, 1)


def _tensor(value: Any) -> Tensor:
    """Any array of numbers as a tensor of its own, with 0 and 1 for truth values."""
    if isinstance(value, Tensor):
        return value.byte() if value.dtype == torch.bool else value.detach().cpu()
    array = np.asarray(value)
    if array.dtype.kind not in "biuf":
        raise ValueError(f"should be an array of numbers, found {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize > 1:
        array = array.astype(np.int64)  # torch has few operations for larger unsigned numbers
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    return torch.from_numpy(np.array(array, copy=True))  # writable, and nobody else's


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
