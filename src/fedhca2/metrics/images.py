"""Metrics of tasks with one answer per image, or a few points in it."""

from math import nan
from typing import Literal, Self

import torch
from torch import Tensor

from fedhca2.labels import IGNORE
from fedhca2.metrics.metric import MeanOfValues, Metric, Sums, histogram

Over = Literal["images", "classes"]


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

    def merge(self, other: Self) -> None:
        """Add the images of another accumulator."""
        self.scores += other.scores
        self.labels += other.labels

    def compute(self) -> dict[str, float]:
        """The mean over classes, and their number."""
        if not self.scores:
            return {self.name: nan, "classes": 0.0}
        scores, labels = (torch.cat([each.cpu() for each in held]).double() for held in (self.scores, self.labels))
        precisions = [average_precision(*pair) for pair in zip(scores.T, labels.T, strict=True)]
        known = [value for value in precisions if value is not None]
        return {self.name: 100 * sum(known) / len(known) if known else nan, "classes": float(len(known))}


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
    power = 2

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add values [B, C]."""
        self.add_values((prediction.double() - label.double()).abs() ** self.power, ~label.isnan())

    def compute(self) -> dict[str, float]:
        """The root of the mean."""
        return {self.name: float(self.mean) ** (1 / self.power)}


class VectorMAE(VectorRMSE):
    """Mean absolute error over all known values of the split."""

    name = "mae"
    power = 1


class CorrectKeypoints(MeanOfValues):
    """The share of labelled points, in %, whose hottest pixel is within a twentieth of the longer side of the label's.

    >>> metric, heat = CorrectKeypoints(), torch.zeros(1, 2, 40, 40)
    >>> heat[0, :, 10, 10] = 1
    >>> metric.update(torch.stack((heat[:, 0].roll(1, 2), heat[:, 1].roll(3, 2)), 1), heat)
    >>> metric.compute()
    {'pck': 50.0}
    """

    name = "pck"

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add heat maps [B, C, H, W]."""
        heat = torch.where(label == IGNORE, -1.0, label.float()).flatten(2)
        width, longer = label.shape[-1], max(label.shape[-2:])
        hottest = [heat.argmax(2), prediction.float().flatten(2).argmax(2)]
        (y, x), (row, column) = ((pixel // width, pixel % width) for pixel in hottest)
        is_close = (y - row).square() + (x - column).square() <= (0.05 * longer) ** 2
        self.add_values(is_close.double(), valid=heat.amax(2) >= 0.5)

    def compute(self) -> dict[str, float]:
        """The share of the points in labels."""
        return {self.name: 100 * float(self.mean)}
