"""Best F-measure of saliency maps over fixed thresholds."""

import torch
from torch import Tensor

from fedhca2.labels import IGNORE
from fedhca2.metrics.metric import Sums, histogram

THRESHOLDS = torch.arange(1, 20) / 20
BETA_SQUARED = 0.3


def counts_at_thresholds(probability: Tensor, label: Tensor, thresholds: Tensor) -> Tensor:
    """Of the valid pixels with p ≥ t, the salient ones [0] and all [1], for t = 0 and each threshold.

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
    r"""$F = \frac{1.3\,PR}{0.3\,P + R}$, 0 where nothing was hit.

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
