"""The decoder of MaT-FL's testbeds: DeepLab's atrous spatial pyramid pooling (ASPP)."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

RATES = {8: (12, 24, 36), 16: (6, 12, 18), 32: (3, 6, 9)}  # the same field of view at every output stride


class DeepLab(nn.Module):
    """The coarsest map seen at five scales: alone, through three dilated convolutions, and as its mean."""

    def __init__(self, channels: Sequence[int], width: int, stride: int) -> None:
        super().__init__()
        self.point = nn.Conv2d(channels[-1], width, kernel_size=1)
        self.atrous = nn.ModuleList(
            nn.Conv2d(channels[-1], width, kernel_size=3, padding=rate, dilation=rate) for rate in RATES[stride]
        )
        self.pooled = nn.Conv2d(channels[-1], width, kernel_size=1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(1 + len(self.atrous)))
        self.fuse = nn.Conv2d(5 * width, width, kernel_size=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Features of the task at the size of the finest map."""
        coarse = features[-1]
        convolutions = [self.point, *self.atrous]
        maps = [functional.relu(norm(each(coarse))) for each, norm in zip(convolutions, self.norms, strict=True)]
        mean = functional.relu(self.pooled(coarse.mean(dim=(2, 3), keepdim=True)))
        fused = functional.relu(self.norm(self.fuse(torch.cat([*maps, mean.expand_as(maps[0])], dim=1))))
        return functional.interpolate(fused, size=features[0].shape[-2:], mode="bilinear", align_corners=False)
