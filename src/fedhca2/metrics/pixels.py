"""Metrics over all valid pixels of a split: IoU of class maps, angles of normals, RMSE of depths, F of saliency."""

from math import nan, pi, sqrt
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from fedhca2.labels import IGNORE
from fedhca2.metrics.metric import MeanOfValues, Sums, histogram


class MeanIoU(Sums):
    r"""mIoU in %, over all valid pixels of the split: the mean of $\frac{TP}{TP + FP + FN}$ of each class.

    `absent`: a class that occurs nowhere is left out of the mean ("skip") or counts as 0 ("zero", as in the released
    code, under a separate name).

    >>> metric = MeanIoU(classes=3)
    >>> metric.update(torch.tensor([[[[0, 1, 1, 1]]]]), torch.tensor([[[[0, 1, 1, 255]]]]))
    >>> metric.compute()
    {'miou': 100.0, 'classes': 2.0}
    """

    def __init__(self, classes: int, absent: Literal["skip", "zero"] = "skip") -> None:
        super().__init__(classes * classes + 2, dtype=torch.int64)
        self.classes, self.absent = classes, absent
        self.name = "miou" if absent == "skip" else "miou_all_classes"

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add class maps [B, 1, H, W]; two cells count ignored pixels and unknown labels."""
        label, prediction, classes = label.long(), prediction.long(), self.classes
        valid = (label >= 0) & (label < classes) & (prediction >= 0) & (prediction < classes)
        elsewhere = torch.where(label == IGNORE, classes * classes, classes * classes + 1)
        self.add(histogram(torch.where(valid, label * classes + prediction, elsewhere), classes * classes + 2))

    def compute(self) -> dict[str, float]:
        """The mean, and the number of classes that occur."""
        cells, unknown = self.sums[:-2].view(self.classes, self.classes).cpu(), int(self.sums[-1])
        if unknown:
            expected = f"classes 0 … {self.classes - 1} or 255 (ignored)"
            raise ValueError(f"expected {expected}, got {unknown} pixels of another value")
        hits = cells.diagonal().double()
        iou = hits / (cells.sum(dim=0) + cells.sum(dim=1) - hits)
        present = ~iou.isnan()
        counted = self.classes if self.absent == "zero" else int(present.sum())
        miou = 100 * float(iou[present].sum()) / counted if present.any() else nan
        return {self.name: miou, "classes": float(present.sum())}


def angle(a: Tensor, b: Tensor) -> Tensor:
    r"""Angle in degrees, $2\operatorname{atan2}(\lVert a-b\rVert, \lVert a+b\rVert)$ of the unit vectors.

    Accurate for small angles, where arccos of the inner product is not. A vector of zero length is at 90° to all.

    >>> angle(torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[0.0, 1.0, 1.0]]))
    tensor([45.], dtype=torch.float64)
    """
    a, b = functional.normalize(a.double(), dim=1), functional.normalize(b.double(), dim=1)
    apart, along = (a - b).norm(dim=1), (a + b).norm(dim=1)
    radians = 2 * torch.atan2(apart, along)
    return torch.where((apart == 0) & (along == 0), pi / 2, radians).rad2deg()


class AngularError(MeanOfValues):
    """Mean angular error in degrees over all valid pixels of the split."""

    name = "mean_error"
    higher_is_better = False
    largest = 180.0

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add normals [B, 3, H, W]."""
        self.add_values(angle(prediction, label), valid=(label != IGNORE).all(dim=1))


class DepthRMSE(MeanOfValues):
    """RMSE in metres over all pixels of the split whose true depth g is measured, 0 < g < 80.

    >>> metric = DepthRMSE()
    >>> metric.update(torch.tensor([[[[1.0, 5.0, 9.0]]]]), torch.tensor([[[[4.0, 1.0, 255.0]]]]))
    >>> metric.compute()
    {'rmse': 3.5355339059327378}
    """

    name = "rmse"
    higher_is_better = False
    largest = 80.0
    finish = staticmethod(sqrt)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add depths [B, 1, H, W] in metres."""
        self.add_values((prediction.double() - label.double()).square(), valid=(label > 0) & (label < self.largest))


def counts_at_thresholds(probability: Tensor, label: Tensor, thresholds: Tensor) -> Tensor:
    """Among the valid pixels with p ≥ t, the salient ones [0] and all [1], for t = 0 and each threshold.

    >>> counts_at_thresholds(torch.tensor([0.05, 0.5]), torch.tensor([0, 1]), torch.tensor([0.05, 0.1]))
    tensor([[1, 1, 1],
            [2, 2, 1]])
    """
    bins = len(thresholds) + 1
    level = torch.bucketize(probability.float().contiguous(), thresholds, right=True)
    level = torch.where(label == IGNORE, 2 * bins, level + bins * (label == 1))
    off, on = histogram(level, 2 * bins + 1)[: 2 * bins].view(2, bins)
    return torch.stack((on, on + off)).flip(1).cumsum(1).flip(1)


class MaxF(Sums):
    r"""Best $F = \frac{1.3\,PR}{0.3\,P + R}$ in % over the thresholds .05 … .95, from counts over the whole split.

    It is 0 without true positives.

    >>> metric = MaxF()
    >>> metric.update(torch.tensor([[[[0.9, 0.2, 0.3]]]]), torch.tensor([[[[1, 0, 255]]]]))
    >>> metric.compute()
    {'max_f': 100.0, 'threshold': 0.25}
    """

    name = "max_f"

    def __init__(self) -> None:
        self.thresholds = torch.arange(1, 20) / 20
        super().__init__(2, len(self.thresholds) + 1, dtype=torch.int64)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add probabilities and labels [B, 1, H, W]."""
        self.thresholds = self.thresholds.to(prediction.device)
        self.add(counts_at_thresholds(prediction, label, self.thresholds))

    def compute(self) -> dict[str, float]:
        """The best F, and the threshold that gave it."""
        on, both = self.sums.cpu().double()
        return _best(self, 1.3 * on[1:] / (0.3 * on[0] + both[1:]).clamp(min=1e-9), both[0])


class SalientIoU(MeanIoU):
    """mIoU in % of background and salient pixels, over all valid pixels of the split.

    >>> metric = SalientIoU()
    >>> metric.update(torch.tensor([[[[0.9, 0.6, 0.3, 0.3]]]]), torch.tensor([[[[1, 0, 0, 255]]]]))
    >>> metric.compute()
    {'miou': 50.0, 'classes': 2.0}
    """

    def __init__(self) -> None:
        super().__init__(classes=2)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add probabilities and labels [B, 1, H, W]; a pixel is salient above 0.5."""
        super().update(prediction > 0.5, label)


class SalientIoUOfImages(Sums):
    """Mean over the images of the IoU of their salient pixels in %, at the best of the thresholds .2 … .9.

    MaT-FL's released code calls this mIoU. If nothing is salient and nothing is predicted, the IoU is 1. An image
    without a valid pixel is not counted.

    >>> metric = SalientIoUOfImages()
    >>> metric.update(torch.tensor([[[[0.9, 0.6]]], [[[0.1, 0.1]]]]), torch.tensor([[[[1, 0]]], [[[0, 0]]]]))
    >>> metric.compute()
    {'miou_of_images': 100.0, 'threshold': 0.65}
    """

    name = "miou_of_images"

    def __init__(self) -> None:
        self.thresholds = torch.arange(4, 19) / 20
        super().__init__(len(self.thresholds) + 1, dtype=torch.float64)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add probabilities and labels [B, 1, H, W]."""
        self.thresholds = self.thresholds.to(prediction.device)
        images = zip(prediction, label, strict=True)
        counts = torch.stack([counts_at_thresholds(*image, self.thresholds) for image in images]).double()
        salient, both = counts[:, 0, :1], counts[:, 1, :1]
        hits, predicted = counts[:, :, 1:].unbind(dim=1)
        union = predicted + salient - hits
        iou = torch.where(union > 0, hits / union.clamp(min=1), 1.0)
        valid = (both > 0).double()
        self.add(torch.cat((valid * iou, valid), dim=1).sum(dim=0))

    def compute(self) -> dict[str, float]:
        """The best mean, and the threshold that gave it."""
        sums = self.sums.cpu()
        return _best(self, sums[:-1] / sums[-1], sums[-1])


def _best(metric: MaxF | SalientIoUOfImages, scores: Tensor, count: Tensor) -> dict[str, float]:
    """The best of the scores at each threshold in %, and its threshold; NaN if nothing was counted."""
    if not count:
        return {metric.name: nan, "threshold": nan}
    best, number = scores.max(dim=0)
    return {metric.name: 100 * float(best), "threshold": round(float(metric.thresholds[number]), 2)}
