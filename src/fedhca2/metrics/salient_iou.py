"""Intersection over union of saliency maps: over the whole split, or image by image."""

import torch
from torch import Tensor

from fedhca2.metrics.max_f import counts_at_thresholds
from fedhca2.metrics.metric import Sums
from fedhca2.metrics.miou import MeanIoU

THRESHOLDS = torch.arange(4, 19) / 20


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

    It is what MaT-FL's released code calls mIoU. Where nothing is salient and nothing is predicted the IoU is 1; an
    image without a valid pixel does not count.

    >>> metric = SalientIoUOfImages()
    >>> metric.update(torch.tensor([[[[0.9, 0.6]]], [[[0.1, 0.1]]]]), torch.tensor([[[[1, 0]]], [[[0, 0]]]]))
    >>> metric.compute()
    {'miou_of_images': 100.0, 'threshold': 0.65}
    """

    name = "miou_of_images"
    higher_is_better = True
    largest = 100.0

    def __init__(self) -> None:
        super().__init__(len(THRESHOLDS) + 1, dtype=torch.float64)
        self.thresholds = THRESHOLDS

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
        return {self.name: 100 * float(best), "threshold": round(float(THRESHOLDS[place]), 2)}
