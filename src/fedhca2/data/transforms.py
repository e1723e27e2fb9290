"""From a sample to the network's input: scale, crop, flip, distort, normalise, pad, ignore (in that order).

Scaling, cropping, flipping and padding act on each axis separately, so together they are one look-up per axis. Random
choices are drawn first, from the sample's own generator, and then applied, so the result does not depend on the
device or thread.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.dataset import Sample
from fedhca2.data.photometric import Distortion, distort, draw_distortion
from fedhca2.labels import IGNORE
from fedhca2.seeds import derive_each
from fedhca2.tasks import TASKS, Task, TaskSet
from fedhca2.tasks.task import resized

IMAGE_MEAN = torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1) * 255
IMAGE_DEVIATION = torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1) * 255
SCALES = (0.5, 2.0)  # the smallest and the largest enlargement
CROP_TRIES = 10
LARGEST_SHARE = 0.75
STRIDE = 32  # of the coarsest map


Indices = NDArray[np.int64]
Size = tuple[int, int]


@dataclass(frozen=True)
class Augmentation:
    """All random choices for one training sample."""

    scale: float
    crops: tuple[tuple[float, float], ...]
    mirrored: bool
    distortion: Distortion | None  # None leaves colours unchanged, without rounding


UNCHANGED = Augmentation(scale=1.0, crops=((0.0, 0.0),), mirrored=False, distortion=None)


def augmentation_seeds(seed: int, client: str, epoch: int, indices: Iterable[int]) -> list[int]:
    """The seeds of the augmentation of images in one epoch of one client."""
    return derive_each(seed, "augment", client, epoch, last=indices)


def draw_augmentation(
    seed: int, client: str, epoch: int, index: int, scales: tuple[float, float] = SCALES
) -> Augmentation:
    """The augmentation of one image in one epoch of one client."""
    rng = np.random.default_rng(*augmentation_seeds(seed, client, epoch, [index]))
    crops = rng.uniform(size=(CROP_TRIES, 2))
    return Augmentation(
        scale=rng.uniform(*scales),
        crops=tuple((float(y), float(x)) for y, x in crops),
        mirrored=bool(rng.random() < 0.5),
        distortion=draw_distortion(rng),
    )


@dataclass(frozen=True)
class Axis:
    """For every output position along one axis: the source positions it reads, and whether it lies in the image."""

    nearest: Indices
    low: Indices
    high: Indices
    share: Tensor
    inside: slice


def axis(length: int, scaled: int, start: int, target: int, *, mirrored: bool = False) -> Axis:
    """Scale an axis to `scaled`, crop `target` positions from `start`, flip, and pad to `target` around the centre.

    >>> axis(4, 4, 0, 6).nearest
    array([0, 0, 1, 2, 3, 3])
    """
    kept = min(scaled, target)
    before = (target - kept) // 2
    position = np.clip(np.arange(target) - before, 0, kept - 1)
    if mirrored:
        position = kept - 1 - position
    position += start
    step = 1 / (scaled / length)  # not length / scaled, whose last bit may differ from OpenCV's
    exact = np.clip((position + 0.5) * step - 0.5, 0, length - 1)
    low = exact.astype(np.int64)
    return Axis(
        nearest=np.minimum((position * step).astype(np.int64), length - 1),
        low=low,
        high=np.minimum(low + 1, length - 1),
        share=torch.from_numpy((exact - low).astype(np.float32)),
        inside=slice(before, before + kept),
    )


def _taken(tensor: Tensor, indices: Indices, dim: int) -> Tensor:
    """Like `index_select`, but several times as fast as torch's."""
    return torch.from_numpy(tensor.numpy().take(indices, axis=dim))


def _linear(image: Tensor, rows: Axis, columns: Axis) -> Tensor:
    above, below = _taken(image, rows.low, 1).float(), _taken(image, rows.high, 1).float()
    lines = torch.lerp(above, below, rows.share[:, None])
    return torch.lerp(_taken(lines, columns.low, 2), _taken(lines, columns.high, 2), columns.share)


def _fill_outside(values: Tensor, rows: Axis, columns: Axis, fill: float) -> Tensor:
    """Fill the padding around the image, in place."""
    values[:, : rows.inside.start] = fill
    values[:, rows.inside.stop :] = fill
    values[..., : columns.inside.start] = fill
    values[..., columns.inside.stop :] = fill
    return values


def is_varied(label: Tensor) -> bool:
    """Whether a crop of a class map shows more than one class, none of them on three quarters of it or more."""
    counts = np.bincount(label.numpy().reshape(-1), minlength=IGNORE + 1)
    counts[IGNORE] = 0
    return bool((counts > 0).sum() > 1 and counts.max() < LARGEST_SHARE * counts.sum())


def _choose_crop(
    sample: Sample, scaled: tuple[int, int], size: tuple[int, int], augmentation: Augmentation, tasks: TaskSet
) -> tuple[Axis, Axis]:
    height, width = sample["image"].shape[-2:]
    chooser = tasks.crop_chooser(sample)
    room = [max(s - t, 0) for s, t in zip(scaled, size, strict=True)]
    for y, x in augmentation.crops:
        rows = axis(height, scaled[0], int(y * (room[0] + 1)), size[0])
        columns = axis(width, scaled[1], int(x * (room[1] + 1)), size[1], mirrored=augmentation.mirrored)
        if chooser is None or room == [0, 0]:
            break
        crop = _taken(sample[chooser], rows.nearest[rows.inside], 1)
        if is_varied(_taken(crop, columns.nearest[columns.inside], 2)):
            break
    return rows, columns


def _labels(sample: Sample, rows: Axis, columns: Axis, scale: float, mirrored: bool, tasks: TaskSet) -> Sample:
    places = rows.nearest[:, None] * sample["image"].shape[-1] + columns.nearest
    labels = {}
    for name, source in sample.items():
        if name == "image":
            continue
        task = tasks[name]
        if task.output == "vector":
            labels[name] = source
            continue
        label = task.rescaled(_taken(source.flatten(1), places, 1), scale)
        if mirrored:
            label = task.flipped(label)
        labels[name] = task.ignored(_fill_outside(label, rows, columns, task.fill))
    return labels


def _as_it_is(task: Task, label: Tensor) -> Tensor:
    """What `_labels` makes of the label of an image that already has the network's size."""
    return label if task.output == "vector" else task.ignored(task.rescaled(label.clone(), 1.0))


def _normalise(image: Tensor) -> Tensor:
    """Normalise an image, in place."""
    return image.sub_(IMAGE_MEAN).div_(IMAGE_DEVIATION)


def for_training(sample: Sample, size: tuple[int, int], augmentation: Augmentation, tasks: TaskSet = TASKS) -> Sample:
    """Prepare a sample for training: float image and labels, all of the network's size."""
    height, width = sample["image"].shape[-2:]
    scaled = (max(int(height * augmentation.scale), 1), max(int(width * augmentation.scale), 1))
    rows, columns = _choose_crop(sample, scaled, size, augmentation, tasks)
    image = _linear(sample["image"], rows, columns)
    if augmentation.distortion is not None:
        image = distort(image, augmentation.distortion)
    labels = _labels(sample, rows, columns, augmentation.scale, augmentation.mirrored, tasks)
    return {"image": _fill_outside(_normalise(image), rows, columns, 0.0), **labels}


def misfit(own: Size, size: Size) -> str:
    """What is wrong with an image that is only padded, but larger than the network's input; empty if it fits."""
    if own[0] <= size[0] and own[1] <= size[1]:
        return ""
    wanted = f"should be at most {size[0]}×{size[1]}, the data set's `size`, to be evaluated"
    return f"{wanted}, found {own[0]}×{own[1]}; with `resize: fit` it is scaled down, and scored at its own size"


def require_fit(sample: Sample, size: Size) -> Size:
    """The height and width of an image that is only padded, so it must not be larger than the network's input."""
    own = own_size(sample)
    if fault := misfit(own, size):
        raise ValueError(fault)
    return own


def for_evaluation(sample: Sample, size: tuple[int, int], tasks: TaskSet = TASKS) -> Sample:
    """Prepare a sample for evaluation: normalised and padded, without randomness."""
    height, width = require_fit(sample, size)
    if (height, width) == size:
        labels = {name: _as_it_is(tasks[name], label) for name, label in sample.items() if name != "image"}
        return {"image": _normalise(sample["image"].to(torch.float32, copy=True)), **labels}
    rows, columns = axis(height, height, 0, size[0]), axis(width, width, 0, size[1])
    labels = _labels(sample, rows, columns, 1.0, mirrored=False, tasks=tasks)
    return {"image": _fill_outside(_normalise(_linear(sample["image"], rows, columns)), rows, columns, 0.0), **labels}


@dataclass(frozen=True)
class Placement:
    """Where an image lies in the network's input, its own size, and how much it was enlarged."""

    inside: tuple[slice, slice]
    size: Size
    scale: float

    def restored(self, task: Task, prediction: Tensor) -> Tensor:
        """Bring predictions [B, C, H, W] of the network's size to the image's own; vectors stay as they are."""
        if task.output == "vector":
            return prediction
        cropped = prediction[..., *self.inside]
        return cropped if self.scale == 1 else task.rescaled(task.resized(cropped, self.size), 1 / self.scale)


def placement(own: Size, size: Size) -> Placement:
    """Place an image in the middle of the network's input, scaled down if it is larger.

    >>> placement((375, 500), (128, 128))
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
    height, width = (usual if resize or side <= usual else -(-side // STRIDE) * STRIDE for side, usual in sides)
    return height, width


def fitted(sample: Sample, size: Size, tasks: TaskSet = TASKS) -> Sample:
    """Scale a sample down if it is larger than the network's input: the image smoothly, labels to the nearest value."""
    place = placement(own_size(sample), size)
    if place.scale == 1:
        return sample
    rows, columns = ((part.stop - part.start) for part in place.inside)
    scaled = {"image": resized(sample["image"][None], (rows, columns))[0]}
    height, width = place.size
    places = axis(height, rows, 0, rows).nearest[:, None] * width + axis(width, columns, 0, columns).nearest
    for name in sample.keys() - {"image"}:
        task, label = tasks[name], sample[name]
        whole = task.output == "vector"
        scaled[name] = label if whole else task.rescaled(_taken(label.flatten(1), places, 1), place.scale)
    return scaled


def own_size(sample: Sample) -> Size:
    """Height and width of an image."""
    height, width = sample["image"].shape[-2:]
    return height, width


def collate(samples: Sequence[Sample]) -> Sample:
    """Stack samples into a batch."""
    return {name: torch.stack([sample[name] for sample in samples]) for name in samples[0]}
