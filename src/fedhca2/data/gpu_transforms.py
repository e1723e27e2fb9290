"""Whole batches prepared at once, as on a GPU: what `for_training` does to each sample."""

import torch
from torch import Tensor

from fedhca2.compiling import compiled
from fedhca2.data.batch_augmentation import Axes, Plan, axes, choose_starts
from fedhca2.data.dataset import Sample
from fedhca2.data.photometric import Distortion, distort
from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN
from fedhca2.tasks import TASKS, crop_chooser


def _taken(source: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The values [B, C, rows, columns] at these places of each sample."""
    batch, channels, _, width = source.shape
    places = (rows[:, :, None] * width + columns[:, None, :]).view(batch, 1, -1)
    found = source.flatten(2).gather(2, places.expand(-1, channels, -1))
    return found.view(batch, channels, rows.shape[1], columns.shape[1])


def places(classes: Tensor | None, plan: Plan, size: tuple[int, int], count: int) -> tuple[Axes, Axes, Tensor]:
    """What every sample reads along rows and columns, and where it lies outside of its image."""
    starts = plan.starts[:, 0]
    if classes is not None and plan.starts.shape[1] > 1:
        starts = choose_starts(classes, plan, size, count)
    still = torch.zeros_like(plan.mirrored)[:, None]
    rows = axes(plan.length[:, :1], plan.scaled[:, :1], starts[:, :1], size[0], still)
    columns = axes(plan.length[:, 1:], plan.scaled[:, 1:], starts[:, 1:], size[1], plan.mirrored[:, None])
    return rows, columns, ~(rows.inside[:, None, :, None] & columns.inside[:, None, None, :])


def picture(image: Tensor, rows: Axes, columns: Axes, plan: Plan, outside: Tensor) -> Tensor:
    """The images as the network sees them."""
    down = rows.share[:, None, :, None]
    left, right = (
        torch.lerp(_taken(image, rows.low, column).float(), _taken(image, rows.high, column).float(), down)
        for column in (columns.low, columns.high)
    )
    image = torch.lerp(left, right, columns.share[:, None, None, :])
    image = torch.where(plan.distorted, distort(image, Distortion(*plan.distortion)), image)
    mean, deviation = IMAGE_MEAN.to(image.device), IMAGE_DEVIATION.to(image.device)
    return ((image - mean) / deviation).masked_fill(outside, 0.0)


def target(name: str, label: Tensor, rows: Axes, columns: Axes, plan: Plan, outside: Tensor) -> Tensor:
    """The labels of one task as the network is trained on them."""
    task = TASKS[name]
    label = task.rescaled(_taken(label, rows.nearest, columns.nearest), plan.scale)
    label = torch.where(plan.mirrored.view(-1, 1, 1, 1), task.flipped(label), label)
    return task.ignored(label.masked_fill(outside, task.fill))


class Preparation:
    """Batches as they are trained or evaluated on, from images and labels on canvases of one size."""

    def __init__(self, *, compile: bool = False) -> None:
        self.places = compiled(places, compile)
        self.picture = compiled(picture, compile)
        self.target = compiled(target, compile)

    def __call__(self, raw: Sample, plan: Plan, size: tuple[int, int], classes: int) -> Sample:
        """One batch; `classes` is how many the task has that crops are chosen by."""
        chooser = crop_chooser(raw)
        crop_by = raw[chooser][:, 0] if chooser else None
        rows, columns, outside = self.places(crop_by, plan, size, classes)
        labels = {name: self.target(name, raw[name], rows, columns, plan, outside) for name in raw if name != "image"}
        return {"image": self.picture(raw["image"], rows, columns, plan, outside), **labels}
