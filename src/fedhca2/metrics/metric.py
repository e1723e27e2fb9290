"""The base class of metrics, running sums, and metrics of tasks with one answer per image or a few points in it."""

from collections.abc import Callable
from math import nan
from typing import Literal

import torch
from torch import Tensor

from fedhca2.labels import IGNORE

Over = Literal["images", "classes"]


class Metric:
    """The base class of metrics, which accumulate over a whole validation split.

    The headline is NaN if and only if there was nothing valid.
    """

    name: str
    higher_is_better: bool = True
    largest: float = 100.0  # the largest score, or where scores are cut off before noise is added; the smallest is 0
    for_plain_maps: bool = True  # whether a map of one value has a score that is worth the time

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add a batch: predictions in the task's final form, labels with 255 for ignored pixels."""
        raise NotImplementedError

    def compute(self) -> dict[str, float]:
        """The scores of all batches so far, the headline first."""
        raise NotImplementedError


class Sums(Metric):
    """Running sums on the device of the addends, in int64 or float64, without waiting for that device."""

    def __init__(self, *shape: int, dtype: torch.dtype) -> None:
        self.sums = torch.zeros(shape, dtype=dtype)

    def add(self, addend: Tensor) -> None:
        """Add to the sums, which move to the device of the first addend."""
        self.sums = self.sums.to(addend.device)
        self.sums += addend


class MeanOfValues(Sums):
    """The mean of valid values over the whole split; `finish` makes the score of it."""

    finish: Callable[[float], float] = staticmethod(float)

    def __init__(self) -> None:
        super().__init__(2, dtype=torch.float64)

    def add_values(self, values: Tensor, valid: Tensor) -> None:
        """Add the values that are valid."""
        self.add(torch.stack((torch.where(valid, values, 0.0).sum(), valid.sum())))

    def compute(self) -> dict[str, float]:
        """The mean, in the unit of the score."""
        total, count = self.sums.cpu().unbind()
        return {self.name: self.finish(float(total / count))}


def histogram(index: Tensor, bins: int) -> Tensor:
    """Count how often each of 0 … bins − 1 occurs, in int64; unlike `torch.bincount` it never waits for the device.

    >>> histogram(torch.tensor([[0, 2], [2, 2]]), bins=3)
    tensor([1, 0, 3])
    """
    flat = index.reshape(-1)
    copies = 256 if flat.is_cuda else 1
    if copies > 1:  # neighbours count in different places, so that they do not wait for each other
        flat = flat + bins * (torch.arange(len(flat), device=flat.device) % copies)
    counts = torch.zeros(copies * bins, dtype=torch.int64, device=index.device)
    return counts.scatter_add_(0, flat, torch.ones_like(flat)).view(copies, bins).sum(dim=0)


class Accuracy(Sums):
    """The share of images, in %, whose class [B, 1] is right; over classes, the mean of the classes' own shares.

    >>> metric = Accuracy(classes=3)
    >>> metric.update(torch.tensor([[0.0], [2.0], [1.0]]), torch.tensor([[0.0], [1.0], [torch.nan]]))
    >>> metric.compute()
    {'accuracy': 50.0}
    """

    def __init__(self, classes: int, over: Over = "images") -> None:
        super().__init__(classes, classes, dtype=torch.int64)
        self.over = over
        self.name = "accuracy" if over == "images" else "mean_class_accuracy"

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add the classes of some images."""
        classes = len(self.sums)
        valid = ~label.isnan() & (label >= 0) & (label < classes)
        cell = torch.where(valid, label * classes + prediction, classes * classes).long()
        self.add(histogram(cell, classes * classes + 1)[:-1].view(classes, classes))

    def compute(self) -> dict[str, float]:
        """The share of right images."""
        cells = self.sums.cpu().double()
        if self.over == "images":
            return {self.name: 100 * float(cells.trace() / cells.sum())}
        shares = cells.diagonal() / cells.sum(dim=1)
        return {self.name: 100 * float(shares.nanmean())}


class MeanAveragePrecision(Metric):
    """mAP in %: for each class, the mean of the precision at every image that has it, in the order of the scores.

    A class that all images have, or none has, says nothing about the order and is left out.

    >>> metric = MeanAveragePrecision()
    >>> metric.update(torch.tensor([[0.9], [0.8], [0.1]]), torch.tensor([[1.0], [0.0], [1.0]]))
    >>> metric.compute()
    {'map': 83.33333333333333, 'classes': 1.0}
    """

    name = "map"

    def __init__(self) -> None:
        self.scores: list[Tensor] = []
        self.labels: list[Tensor] = []

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add probabilities and labels [B, C]."""
        self.scores.append(prediction.clone())
        self.labels.append(label.clone())

    def compute(self) -> dict[str, float]:
        """The mean over classes, and their number."""
        if not self.scores:
            return {self.name: nan, "classes": 0.0}
        scores, labels = (torch.cat([each.cpu() for each in all]).double() for all in (self.scores, self.labels))
        precisions = [average_precision(*pair) for pair in zip(scores.T, labels.T, strict=True)]
        defined = [value for value in precisions if value is not None]
        return {self.name: 100 * sum(defined) / len(defined) if defined else nan, "classes": float(len(defined))}


def average_precision(scores: Tensor, labels: Tensor) -> float | None:
    """The average precision of one class over images with a known label; equal scores count as one step.

    >>> average_precision(torch.tensor([0.5, 0.5]), torch.tensor([1.0, 0.0]))
    0.5
    """
    scores, right = scores[~labels.isnan()], labels[~labels.isnan()] > 0.5
    if not right.any() or right.all():
        return None
    order = scores.argsort(descending=True)
    scores, right = scores[order], right[order]
    last = torch.cat((scores[1:] != scores[:-1], torch.tensor([True])))  # of images with the same score
    hits = right.cumsum(0)[last].double()
    precision = hits / (torch.arange(1, len(right) + 1)[last])
    gained = hits.diff(prepend=hits.new_zeros(1))
    return float((precision * gained).sum() / right.sum())


class VectorRMSE(MeanOfValues):
    """RMSE over all known values of the split.

    >>> metric = VectorRMSE()
    >>> metric.update(torch.tensor([[1.0, 5.0]]), torch.tensor([[4.0, torch.nan]]))
    >>> metric.compute()
    {'rmse': 3.0}
    """

    name = "rmse"
    higher_is_better = False
    finish = staticmethod(lambda mean: mean**0.5)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add values [B, C]."""
        self.add_values((prediction.double() - label.double()).square(), ~label.isnan())


class VectorMAE(MeanOfValues):
    """Mean absolute error over all known values of the split."""

    name = "mae"
    higher_is_better = False

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add values [B, C]."""
        self.add_values((prediction.double() - label.double()).abs(), ~label.isnan())


class CorrectKeypoints(MeanOfValues):
    """The share of labelled points, in %, whose hottest pixel is within a twentieth of the longer side of the label's.

    >>> metric, heat = CorrectKeypoints(), torch.zeros(1, 2, 40, 40)
    >>> heat[0, :, 10, 10] = 1
    >>> metric.update(torch.stack((heat[:, 0].roll(1, 2), heat[:, 1].roll(3, 2)), 1), heat)
    >>> metric.compute()
    {'pck': 50.0}
    """

    name = "pck"
    finish = staticmethod(lambda mean: 100 * mean)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add heat maps [B, C, H, W]."""
        heat = torch.where(label == IGNORE, -1.0, label.float()).flatten(2)
        width, longer = label.shape[-1], max(label.shape[-2:])
        hottest = [heat.argmax(2), prediction.float().flatten(2).argmax(2)]
        (y, x), (row, column) = ((pixel // width, pixel % width) for pixel in hottest)
        is_close = (y - row).square() + (x - column).square() <= (0.05 * longer) ** 2
        self.add_values(is_close.double(), valid=heat.amax(2) >= 0.5)
