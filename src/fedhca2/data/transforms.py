"""The place of an image in the network's input: scaled down if asked for, and around the centre."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedhca2.data.dataset import Sample, Size
from fedhca2.tasks import TASKS, Task, TaskSet
from fedhca2.tasks.task import resized

IMAGE_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
IMAGE_DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255


def check_fit(own: Size, size: Size) -> None:
    """Raise ValueError if an image that is only padded is larger than the network's input."""
    if own[0] > size[0] or own[1] > size[1]:
        expected = f"expected at most {size[0]}×{size[1]}, the data set's `size`, to be evaluated"
        hint = "with `resize: fit` it is scaled down, and scored at its own size"
        raise ValueError(f"{expected}, got {own[0]}×{own[1]}; {hint}")


@dataclass(frozen=True)
class Placement:
    """Where an image lies in the network's input, its own size, and how much it was enlarged."""

    inside: tuple[slice, slice]
    size: Size
    scale: float

    def restore(self, task: Task, prediction: Tensor) -> Tensor:
        """Bring predictions [B, C, H, W] of the network's size to the image's own; vectors stay as they are."""
        if task.output == "vector":
            return prediction
        cropped = prediction[..., *self.inside]
        return cropped if self.scale == 1 else task.rescaled(task.resized(cropped, self.size), 1 / self.scale)


def place_image(own: Size, size: Size) -> Placement:
    """Place an image in the middle of the network's input, scaled down if it is larger.

    >>> place_image((375, 500), (128, 128))
    Placement(inside=(slice(16, 112, None), slice(0, 128, None)), size=(375, 500), scale=0.256)
    """
    scale = min(1.0, size[0] / own[0], size[1] / own[1])
    rows, columns = (min(max(round(side * scale), 1), most) for side, most in zip(own, size, strict=True))
    top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
    return Placement((slice(top, top + rows), slice(left, left + columns)), own, scale)


def input_size(own: Size, size: Size, *, resize: bool) -> Size:
    """The size of the network's input for an image of any size: the data set's `size`, as in evaluation.

    Without `resize`, a side that is too long for it, which evaluation refuses, is padded to whole strides instead:
    otherwise coarse maps would reach beyond the image, further than in training, and be squeezed into it.

    >>> input_size((30, 48), (33, 48), resize=False), input_size((100, 48), (33, 48), resize=False)
    ((33, 48), (128, 48))
    """
    sides = zip(own, size, strict=True)
    height, width = (usual if resize or side <= usual else -(-side // 32) * 32 for side, usual in sides)
    return height, width


def fit_to_input(sample: Sample, size: Size, tasks: TaskSet = TASKS) -> Sample:
    """Scale a sample down if it is larger than the network's input: the image smoothly, labels to the nearest value."""
    placement = place_image(own_size(sample), size)
    if placement.scale == 1:
        return sample
    height, width = ((part.stop - part.start) for part in placement.inside)
    rows, columns = nearest(placement.size[0], height), nearest(placement.size[1], width)
    scaled = {"image": resized(sample["image"][None], (height, width))[0]}
    for name in (name for name in sample if name != "image"):
        task, label = tasks[name], sample[name]
        is_map = task.output == "map"
        scaled[name] = task.rescaled(label[:, rows[:, None], columns], placement.scale) if is_map else label
    return scaled


def nearest(length: int, scaled: int) -> Tensor:
    """The positions that OpenCV reads when it scales an axis without interpolation.

    >>> nearest(5, 3)
    tensor([0, 1, 3])
    """
    step = 1 / (scaled / length)  # not length / scaled, whose last bit may differ from OpenCV's
    return (torch.arange(scaled, dtype=torch.double) * step).long().clamp(max=length - 1)


def own_size(sample: Sample) -> Size:
    """Height and width of an image."""
    height, width = sample["image"].shape[-2:]
    return height, width


def collate(samples: Sequence[Sample]) -> Sample:
    """Stack samples into a batch."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
