"""Root mean square error of depth."""

import torch
from torch import Tensor

from fedhca2.metrics.metric import Sums

FARTHEST = 80.0


class DepthRMSE(Sums):
    """RMSE in metres over all pixels of the split whose true depth g is measured, 0 < g < 80.

    >>> metric = DepthRMSE()
    >>> metric.update(torch.tensor([[[[1.0, 5.0, 9.0]]]]), torch.tensor([[[[4.0, 1.0, 255.0]]]]))
    >>> metric.compute()
    {'rmse': 3.5355339059327378}
    """

    name = "rmse"
    higher_is_better = False
    largest = FARTHEST

    def __init__(self) -> None:
        super().__init__(2, dtype=torch.float64)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add depths [B, 1, H, W] in metres."""
        valid = (label > 0) & (label < FARTHEST)
        error = prediction.double() - label.double()
        self.add(torch.stack((torch.where(valid, error * error, 0.0).sum(), valid.sum())))

    def compute(self) -> dict[str, float]:
        """The root of the mean."""
        total, count = self.sums.cpu()
        return {self.name: float((total / count).sqrt())}
