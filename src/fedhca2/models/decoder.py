"""What follows the encoder, once per task: a decoder and a head."""

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


class Head(nn.Sequential):
    """From [B, width, H/4, W/4] to [B, channels, H, W]."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(
            nn.ConvTranspose2d(width, width // 2, kernel_size=2, stride=2),
            nn.ConvTranspose2d(width // 2, width // 4, kernel_size=2, stride=2),
            nn.Conv2d(width // 4, channels, kernel_size=1),
        )
