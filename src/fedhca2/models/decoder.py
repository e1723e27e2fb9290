"""The decoder of one task: project, upsample, concatenate, fuse."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


class Decoder(nn.Module):
    """The papers' simple FCN: its six layers are the four projections, the fusing convolution and its BatchNorm."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Conv2d(c, width, kernel_size=1) for c in channels)
        self.fuse = nn.Conv2d(len(channels) * width, width, kernel_size=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Features of the task at the size of the finest map."""
        size = features[0].shape[-2:]
        maps = [project(feature) for project, feature in zip(self.projections, features, strict=True)]
        maps = [functional.interpolate(m, size=size, mode="bilinear", align_corners=False) for m in maps]
        return functional.leaky_relu(self.norm(self.fuse(torch.cat(maps, dim=1))), negative_slope=0.01)
