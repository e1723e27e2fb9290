"""Metrics of saliency: the best F over thresholds, and two kinds of mean IoU."""

import torch
from torch import Tensor

from fedhca2.labels import IGNORE
from fedhca2.metrics.metric import Sums, histogram
from fedhca2.metrics.pixels import MeanIoU

THRESHOLDS = torch.arange(1, 20) / 20
IOU_THRESHOLDS = torch.arange(4, 19) / 20
BETA_SQUARED = 0.3


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


def f_measure(true_positives: Tensor, predicted: Tensor, actual: Tensor) -> Tensor:
    r"""$F = \frac{1.3\,PR}{0.3\,P + R}$, 0 without true positives.

    >>> f_measure(torch.tensor([2.0, 0.0]), torch.tensor([4.0, 0.0]), torch.tensor(2.0))
    tensor([0.5652, 0.0000])
    """
    return (1 + BETA_SQUARED) * true_positives / (BETA_SQUARED * actual + predicted).clamp(min=1e-9)


class MaxF(Sums):
    """Best F in % over the thresholds .05 … .95, from counts over the whole split.

    >>> metric = MaxF()
    >>> metric.update(torch.tensor([[[[0.9, 0.2, 0.3]]]]), torch.tensor([[[[1, 0, 255]]]]))
    >>> metric.compute()
    {'max_f': 100.0, 'threshold': 0.25}
    """

    name = "max_f"
    higher_is_better = True
    largest = 100.0

    def __init__(self) -> None:
        super().__init__(2, len(THRESHOLDS) + 1, dtype=torch.int64)
        self.thresholds = THRESHOLDS

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add probabilities and labels [B, 1, H, W]."""
        self.thresholds = self.thresholds.to(prediction.device)
        self.add(counts_at_thresholds(prediction, label, self.thresholds))

    def compute(self) -> dict[str, float]:
        """The best F, and the threshold that gave it."""
        on, both = self.sums.cpu().double()
        if not both[0]:
            return {self.name: float("nan"), "threshold": float("nan")}
        best, place = f_measure(on[1:], both[1:], on[0]).max(dim=0)
        return {self.name: 100 * float(best), "threshold": round(float(THRESHOLDS[place]), 2)}


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
    higher_is_better = True
    largest = 100.0

    def __init__(self) -> None:
        super().__init__(len(IOU_THRESHOLDS) + 1, dtype=torch.float64)
        self.thresholds = IOU_THRESHOLDS

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
        if not sums[-1]:
            return {self.name: float("nan"), "threshold": float("nan")}
        best, place = (sums[:-1] / sums[-1]).max(dim=0)
        return {self.name: 100 * float(best), "threshold": round(float(IOU_THRESHOLDS[place]), 2)}
