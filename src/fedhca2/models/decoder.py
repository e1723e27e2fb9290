"""The decoder of one task: project, upsample, concatenate, fuse."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional


def interpolation(length: int, target: int, device: torch.device) -> Tensor:
    """The matrix [target, length] of linear interpolation between the centres of pixels.

    >>> interpolation(2, 4, torch.device("cpu"))
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500],
            [0.2500, 0.7500],
            [0.0000, 1.0000]])
    """
    place = (torch.arange(target, device=device) + 0.5) * (length / target) - 0.5
    distance = place.clamp(0, length - 1)[:, None] - torch.arange(length, device=device)
    return (1 - distance.abs()).clamp(min=0)


def upsample(maps: Tensor, size: torch.Size) -> Tensor:
    """Bilinear interpolation to `size` as two products of matrices: their gradient is two more, and no scattered sum.

    A weight of a power-of-two scale is exact in bfloat16.
    """
    batch, channels, height, width = maps.shape
    rows, columns = (
        interpolation(*pair, maps.device).to(maps.dtype) for pair in zip((height, width), size, strict=True)
    )
    tall = rows @ maps.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
    full = columns @ tall.view(-1, width, channels)
    return full.view(batch, *size, channels).permute(0, 3, 1, 2)


class Decoder(nn.Module):
    """The papers' simple FCN: its six layers are the four projections, the fusing convolution and its BatchNorm.

    Interpolation and a 1×1 convolution can change places: each map is fused at its own size, then enlarged and added.
    """

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.projections = nn.ModuleList(nn.Conv2d(c, width, kernel_size=1) for c in channels)
        self.fuse = nn.Conv2d(len(channels) * width, width, kernel_size=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Features of the task at the size of the finest map."""
        weights = torch.split(self.fuse.weight, self.fuse.out_channels, dim=1)
        pairs = zip(self.projections, features, weights, strict=True)
        fused, *others = [functional.conv2d(project(feature), weight) for project, feature, weight in pairs]
        for maps in others:
            fused = fused + upsample(maps, fused.shape[-2:])
        if self.fuse.bias is not None:
            fused = fused + self.fuse.bias[:, None, None]
        return functional.leaky_relu(self.norm(fused), negative_slope=0.01)
