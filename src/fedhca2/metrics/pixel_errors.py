"""Errors per pixel: of angles, and of depth."""

from math import pi

import torch
from torch import Tensor
from torch.nn import functional

from fedhca2.labels import IGNORE
from fedhca2.metrics.metric import Sums


def angle(a: Tensor, b: Tensor, dim: int = 1) -> Tensor:
    r"""Angle in degrees, $2\operatorname{atan2}(\lVert a-b\rVert, \lVert a+b\rVert)$ of the unit vectors.

    Accurate for small angles, where arccos of the inner product is not. A vector of zero length is at 90° to all.

    >>> angle(torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([[0.0, 1.0, 1.0]]))
    tensor([45.], dtype=torch.float64)
    """
    a, b = functional.normalize(a.double(), dim=dim), functional.normalize(b.double(), dim=dim)
    apart, along = (a - b).norm(dim=dim), (a + b).norm(dim=dim)
    radians = 2 * torch.atan2(apart, along)
    return torch.where((apart == 0) & (along == 0), pi / 2, radians).rad2deg()


class AngularError(Sums):
    """Mean angular error in degrees over all valid pixels of the split."""

    name = "mean_error"
    higher_is_better = False
    largest = 180.0

    def __init__(self) -> None:
        super().__init__(2, dtype=torch.float64)

    def update(self, prediction: Tensor, label: Tensor) -> None:
        """Add normals [B, 3, H, W]."""
        valid = (label != IGNORE).all(dim=1)
        self.add(torch.stack((torch.where(valid, angle(prediction, label), 0.0).sum(), valid.sum())))

    def compute(self) -> dict[str, float]:
        """The mean angle."""
        total, count = self.sums.cpu()
        return {self.name: float(total / count)}


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
