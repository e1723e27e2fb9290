"""Random changes of training images, for whole batches on any device: scale, crop, flip, distort, normalise, pad.

All choices of an epoch are drawn first and then applied, so the result does not depend on the device or thread.
Scaling, cropping, flipping and padding act on each axis separately, so together they are one look-up per axis. Colours
are distorted in whole grey levels, rounded like OpenCV's images of 8 bits: floats that are small enough to be exact.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from fedhca2.compiling import ALIGNMENT, compiled
from fedhca2.data.dataset import Sample, Size
from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN, check_fit, own_size
from fedhca2.tasks import TASKS, Task, TaskSet

SCALES = (0.5, 2.0)  # the smallest and the largest enlargement
SECTOR = 30  # a sixth of the circle of hues: red is 0, green 60, blue 120
WHOLE = 255 * SECTOR  # the largest product of a saturation and a part of a sector


def distort(
    image: Tensor,
    brightness: float | Tensor = 0.0,
    contrast_before: float | Tensor = 1.0,
    saturation: float | Tensor = 1.0,
    hue: float | Tensor = 0.0,
    contrast_after: float | Tensor = 1.0,
) -> Tensor:
    """Distort the colours of images [..., 3, H, W] with values 0 … 255: all alike, or each by numbers [B, 1, 1, 1].

    Contrast changes before or after saturation and hue, which turns in whole steps. The defaults only round.
    """
    image = _levels(image.floor() + brightness)
    turned, saturated, value = to_hsv(_levels(image * contrast_before))
    image = from_hsv(turned + hue, _levels(saturated * saturation), value)
    return _levels(image * contrast_after)


def _levels(values: Tensor) -> Tensor:
    """Clamp values to the range of 8 bits, in place."""
    return values.clamp_(0, 255).floor_()


def to_hsv(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue -30 … 150, saturation and value 0 … 255 of an image's grey levels: [..., 1, H, W] of [..., 3, H, W]."""
    red, green, blue = image.chunk(3, dim=-3)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # A lerp by 0 or 1 selects like `where`, several times as fast on a CPU.
    unless_red, unless_green = (value - red).clamp_(max=1), (value - green).clamp_(max=1)
    angle = torch.add(red - green, chroma, alpha=4)
    angle = torch.lerp(torch.add(blue - red, chroma, alpha=2), angle, unless_green)
    angle = torch.lerp(green - blue, angle, unless_red)
    return _share(angle, chroma, SECTOR), _share(chroma, value, 255), value


def _share(part: Tensor, whole: Tensor, full: int) -> Tensor:
    """`full` · part / whole to the nearest integer, with the reciprocal rounded first, to 12 fractional bits."""
    unit = 4096
    reciprocal = (full * unit / whole.clamp(min=1)).round_()
    return reciprocal.mul_(part).add_(unit / 2).div_(unit).floor_()


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The image [..., 3, H, W] of these hues -90 … 180, saturations and values.

    >>> image = torch.tensor([200.0, 30.0, 90.0]).view(3, 1, 1)
    >>> from_hsv(*to_hsv(image)).flatten().tolist()
    [200.0, 29.0, 92.0]
    """
    primaries = torch.arange(0.0, 6 * SECTOR, 2 * SECTOR, device=hue.device).view(3, 1, 1)
    # A channel is at full value within one sector of its own hue, around the circle, and lowest from two sectors on.
    loss = (hue - primaries).abs_().sub_(3 * SECTOR).abs_().neg_().add_(2 * SECTOR).clamp_(0, SECTOR)
    # Levels are multiples of 1 / WHOLE; adding half of that keeps whole levels whole, however products are rounded.
    return loss.mul_(value * saturation * (-1 / WHOLE)).add_(value + 0.5 / WHOLE).floor_()


class Choices(NamedTuple):
    """What is done with each of N images. It is cropped by the first of several tries that shows several classes."""

    scale: Tensor  # [N], in double precision
    crops: Tensor  # where each try starts, as shares of the room for it: [N, tries, 2], in double precision
    mirrored: Tensor  # [N]
    distortion: Tensor | None  # the numbers of `distort`, [N, 5]; None leaves colours unchanged, without rounding

    @classmethod
    def draw(cls, rng: np.random.Generator, count: int, scales: tuple[float, float] = SCALES) -> "Choices":
        """Draw choices: brightness ± 32 of 255, contrast and saturation × 0.5 … 1.5, hue -18 … 17 of 180."""
        draws = torch.from_numpy(rng.random((count, 31)))
        scale, mirror, first, brightness, contrast, saturation, hue = draws[:, :7].T
        on = draws[:, 7:11].T < 0.5
        contrast = torch.where(on[1], 0.5 + contrast, 1.0)
        distortion = [
            torch.where(on[0], -32 + 64 * brightness, 0.0),
            torch.where(first < 0.5, contrast, 1.0),
            torch.where(on[2], 0.5 + saturation, 1.0),
            torch.where(on[3], (36 * hue).floor() - 18, 0.0),
            torch.where(first < 0.5, 1.0, contrast),
        ]
        return cls(
            scale=scales[0] + (scales[1] - scales[0]) * scale,
            crops=draws[:, 11:].reshape(count, 10, 2),
            mirrored=mirror < 0.5,
            distortion=torch.stack(distortion, dim=1).float(),
        )

    @classmethod
    def none(cls, count: int) -> "Choices":
        """Leave this many images as they are."""
        crops = torch.zeros(count, 1, 2, dtype=torch.double)
        return cls(torch.ones(count, dtype=torch.double), crops, torch.zeros(count, dtype=torch.bool), None)

    @property
    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        return [each for each in self if each is not None]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Choices":
        """The same with each of its tensors changed."""
        return Choices._make(None if each is None else change(each) for each in self)


class Packed(NamedTuple):
    """Images and labels of any size in the corners of canvases of one size, and what is done with each."""

    canvases: Sample
    lengths: Tensor  # height and width of each image, [B, 2]
    choices: Choices

    @property
    def tensors(self) -> list[Tensor]:
        """All of its tensors."""
        return [*self.canvases.values(), self.lengths, *self.choices.tensors]

    def map(self, change: Callable[[Tensor], Tensor]) -> "Packed":
        """The same with each of its tensors changed."""
        canvases = {name: change(canvas) for name, canvas in self.canvases.items()}
        return Packed(canvases, change(self.lengths), self.choices.map(change))

    def chosen(self, positions: Tensor, choices: Choices) -> "Packed":
        """The images and labels at these positions, with choices for them."""
        canvases = {name: canvas.index_select(0, positions) for name, canvas in self.canvases.items()}
        return Packed(canvases, self.lengths[positions], choices)

    @property
    def nbytes(self) -> int:
        """The size of all images and labels in memory."""
        return sum(canvas.nbytes for canvas in self.canvases.values())


def pack(samples: Sequence[Sample], choices: Choices, size: Size, *, pin: bool = False) -> Packed:
    """Put samples of any size on canvases of one size, usually the network's."""
    shapes = [tuple(sample["image"].shape[-2:]) for sample in samples]
    height, width = (max(length, *(shape[i] for shape in shapes)) for i, length in enumerate(size))
    canvases = {}
    for name, first in samples[0].items():
        labels = [sample[name] for sample in samples]
        shape = first.shape if first.ndim == 1 else (first.shape[0], height, width)
        canvas = torch.empty(len(samples), *shape, dtype=first.dtype, pin_memory=pin)
        if first.ndim == 1 or set(shapes) == {(height, width)}:
            torch.stack(labels, out=canvas)
        else:
            for corner, label in zip(canvas, labels, strict=True):
                corner[:, : label.shape[1], : label.shape[2]].copy_(label)
        canvases[name] = canvas
    return Packed(canvases, torch.tensor(shapes), choices)


class InputFormat(NamedTuple):
    """What batches are prepared for: tasks, the network's size, and the classes of the task that chooses crops."""

    tasks: TaskSet
    size: Size
    classes: int = 0


class Axes(NamedTuple):
    """For every sample and output position [B, target]: the source positions it reads, and whether it is inside."""

    nearest: Tensor
    low: Tensor
    high: Tensor
    share: Tensor
    inside: Tensor


def axes(length: Tensor, scaled: Tensor, start: Tensor, target: int, mirrored: Tensor) -> Axes:
    """Scale an axis to `scaled`, crop `target` positions from `start`, flip, and pad to `target` around the centre.

    All arguments except `target` are [..., 1].
    """
    positions = torch.arange(target, device=length.device)
    visible = scaled.clamp(max=target)
    before = (target - visible) // 2
    position = (positions - before).clamp(min=0).minimum(visible - 1)
    position = torch.where(mirrored, visible - 1 - position, position)
    position = position + start
    step = 1 / (scaled.double() / length)  # not length / scaled, whose last bit may differ from OpenCV's
    exact = ((position + 0.5) * step - 0.5).clamp(min=0).minimum(length.double() - 1)
    low = exact.long()
    return Axes(
        nearest=(position * step).long().minimum(length - 1),
        low=low,
        high=(low + 1).minimum(length - 1),
        share=(exact - low).float(),
        inside=((positions >= before) & (positions < before + visible)).expand_as(low),
    )


def choose_crops(classes: Tensor, length: Tensor, scaled: Tensor, starts: Tensor, size: Size, count: int) -> Tensor:
    """The start of each sample's crop [B, 2]: the first of its tries that is varied, or the last one.

    A crop is varied if it shows more than one class, none of them on three quarters of it or more. Its number of pixels
    of a class is Σ_ij rows_i·columns_j over the pixels (i, j) of that class, where rows and columns count how often the
    crop reads each row and column: a GPU computes that without waiting.

    :param classes: maps [B, H, W] with numbers of classes below `count`, or to be ignored
    :param length: heights and widths of the images [B, 2]; `scaled`: the same when enlarged
    :param starts: of each try [B, tries, 2]
    """
    (batch, tries), still = starts.shape[:2], torch.zeros_like(starts[..., :1], dtype=torch.bool)
    read = [
        axes(length[:, None, side, None], scaled[:, None, side, None], starts[..., side, None], size[side], still)
        for side in (0, 1)
    ]
    in_rows, in_columns = (
        torch.zeros(batch, tries, side, device=classes.device).scatter_add_(2, each.nearest, each.inside.float())
        for each, side in zip(read, classes.shape[1:], strict=True)
    )
    is_class = classes[:, :, None] == torch.arange(count, device=classes.device, dtype=classes.dtype)[:, None]
    # Half precision is exact here: no number exceeds the size of a crop.
    dtype = torch.half if classes.is_cuda else torch.float
    aligned = pad(in_columns, (0, 0, 0, -tries % ALIGNMENT)).to(dtype)
    by_row = is_class.to(dtype).flatten(1, 2) @ aligned.transpose(1, 2)  # [B, H × class, try]
    by_row = by_row[..., :tries].float().view(batch, -1, count, tries)
    pixels = torch.einsum("bkh,bhck->bkc", in_rows, by_row)
    varied = ((pixels > 0).sum(-1) > 1) & (pixels.amax(-1) < 0.75 * pixels.sum(-1))
    varied[:, -1] = True
    return starts[torch.arange(batch, device=starts.device), varied.int().argmax(dim=1)]


def _rows(source: Tensor, rows: Tensor) -> Tensor:
    """These rows of each sample: [B, C, rows, W] of [B, C, H, W]."""
    batch, channels, height, width = source.shape
    first = height * torch.arange(batch * channels, device=source.device).view(batch, channels, 1)
    return source.flatten(0, 2).index_select(0, (first + rows[:, None]).flatten()).view(batch, channels, -1, width)


def _columns(source: Tensor, columns: Tensor) -> Tensor:
    """These columns of each sample: [B, C, H, columns] of [B, C, H, W]."""
    return source.gather(3, columns[:, None, None].expand(*source.shape[:3], -1))


def positions(
    classes: Tensor | None, lengths: Tensor, choices: Choices, size: Size, count: int
) -> tuple[Axes, Axes, Tensor]:
    """The rows and columns that every sample reads, and where it lies outside its image."""
    scaled = (lengths * choices.scale[:, None]).long().clamp(min=1)
    room = torch.stack([(scaled[:, side] - size[side]).clamp(min=0) for side in (0, 1)], dim=1)
    tries = (choices.crops * (room[:, None] + 1)).long()
    start = tries[:, 0]
    if classes is not None and tries.shape[1] > 1:
        start = choose_crops(classes, lengths, scaled, tries, size, count)
    mirrored = choices.mirrored[:, None]
    rows = axes(lengths[:, :1], scaled[:, :1], start[:, :1], size[0], torch.zeros_like(mirrored))
    columns = axes(lengths[:, 1:], scaled[:, 1:], start[:, 1:], size[1], mirrored)
    return rows, columns, ~(rows.inside[:, None, :, None] & columns.inside[:, None, None, :])


def picture(
    image: Tensor,
    rows: Axes,
    columns: Axes,
    outside: Tensor,
    distortion: Tensor | None,
    mean: Tensor,
    deviation: Tensor,
) -> Tensor:
    """Prepare the images for the network, which are normalised by this mean and deviation."""
    lines = torch.lerp(_rows(image, rows.low).float(), _rows(image, rows.high).float(), rows.share[:, None, :, None])
    image = torch.lerp(_columns(lines, columns.low), _columns(lines, columns.high), columns.share[:, None, None, :])
    if distortion is not None:
        image = distort(image, *distortion.T[..., None, None, None])
    return image.sub_(mean).div_(deviation).masked_fill_(outside, 0.0)


def target(task: Task, label: Tensor, rows: Axes, columns: Axes, outside: Tensor, choices: Choices) -> Tensor:
    """Prepare the training labels of one task."""
    scale, mirrored = choices.scale.float().view(-1, 1, 1, 1), choices.mirrored.view(-1, 1, 1, 1)
    label = task.rescaled(_columns(_rows(label, rows.nearest), columns.nearest), scale)
    label = torch.where(mirrored, task.flipped(label), label)
    return task.ignored(label.masked_fill(outside, task.fill))


@cache
def mean_and_deviation(device: torch.device) -> tuple[Tensor, Tensor]:
    """What images are normalised by, stored once per device: graphs and compiled code should not copy it."""
    return IMAGE_MEAN.to(device), IMAGE_DEVIATION.to(device)


class Preparation:
    """Prepares batches for training, or for evaluation, on the device that they are on."""

    def __init__(self, *, compile: bool = False) -> None:
        self.positions = compiled(positions, compile)
        self.picture = compiled(picture, compile)
        self.target = compiled(target, compile)

    def __call__(self, packed: Packed, form: InputFormat) -> Sample:
        """Prepare one batch."""
        raw, choices = packed.canvases, packed.choices
        chooser = form.tasks.crop_chooser(raw)
        crop_by = raw[chooser][:, 0] if chooser else None
        rows, columns, outside = self.positions(crop_by, packed.lengths, choices, form.size, form.classes)
        means = mean_and_deviation(raw["image"].device)
        prepared = {**raw, "image": self.picture(raw["image"], rows, columns, outside, choices.distortion, *means)}
        for name in [name for name, label in raw.items() if name != "image" and label.ndim > 2]:
            prepared[name] = self.target(form.tasks[name], raw[name], rows, columns, outside, choices)
        return prepared


def for_evaluation(sample: Sample, size: Size) -> Sample:
    """Prepare a sample for evaluation: normalised, and padded around the centre."""
    check_fit(own_size(sample), size)
    prepared = Preparation()(pack([sample], Choices.none(1), size), InputFormat(TASKS, size))
    return {name: values[0] for name, values in prepared.items()}
