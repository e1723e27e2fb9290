"""Mean intersection over union of class maps."""

from math import nan
from typing import Literal

import torch
from torch import Tensor

from fedhca2.labels import IGNORE
from fedhca2.metrics.metric import Sums, histogram


def confusion(prediction: Tensor, label: Tensor, classes: int) -> Tensor:
    """Pixels by label (row) and prediction (column); two more cells count ignored pixels and unknown labels.

    >>> confusion(torch.tensor([0, 1, 1]), torch.tensor([0, 0, 255]), classes=2)
    tensor([1, 1, 0, 0, 1, 0])
    """
    label, prediction = label.long(), prediction.long()
    known = (label >= 0) & (label < classes) & (prediction >= 0) & (prediction < classes)
    elsewhere = torch.where(label == IGNORE, classes * classes, classes * classes + 1)
    return histogram(torch.where(known, label * classes + prediction, elsewhere), classes * classes + 2)


def intersection_over_union(confusion: Tensor) -> Tensor:
    r"""$\frac{TP}{TP + FP + FN}$ of each class, NaN for a class that neither labels nor predictions contain.

    >>> intersection_over_union(torch.tensor([[3, 1, 0], [0, 4, 0], [0, 0, 0]]))
    tensor([0.7500, 0.8000,    nan], dtype=torch.float64)
    """
    hits = confusion.diagonal().double()
    return hits / (confusion.sum(dim=0) + confusion.sum(dim=1) - hits)


class MeanIoU(Sums):
    """mIoU in %, over all valid pixels of the split.

    `absent`: a class that occurs nowhere is left out of the mean ("skip") or counts as 0 ("zero", as in the released
    code, under a name of its own).

    >>> metric = MeanIoU(classes=3)
    >>> metric.update(torch.tensor([[[[0, 1, 1, 1]]]]), torch.tensor([[[[0, 1, 1, 255]]]]))
    >>> metric.compute()
    {'miou': 100.0, 'classes': 2.0}
    """

    higher_is_better = True
    largest = 100.0

    def __init__(self, classes: int, absent: Literal["skip", "zero"] = "skip") -> None:
        super().__init__(classes * classes + 2, dtype=torch.int64)
        self.classes, self.absent = classes, absent
        self.name = "miou" if absent == "skip" else "miou_all_classes"

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add class maps [B, 1, H, W]."""
        self.add(confusion(prediction, label, self.classes))

    def compute(self) -> dict[str, float]:
        """The mean, and the number of classes that occur."""
        cells, unknown = self.sums[:-2].view(self.classes, self.classes).cpu(), int(self.sums[-1])
        if unknown:
            raise ValueError(
                f"classes should be 0 … {self.classes - 1} or 255 (ignored), found {unknown} pixels of another value"
            )
        iou = intersection_over_union(cells)
        found = ~iou.isnan()
        counted = self.classes if self.absent == "zero" else int(found.sum())
        miou = 100 * float(iou[found].sum()) / counted if found.any() else nan
        return {self.name: miou, "classes": float(found.sum())}
