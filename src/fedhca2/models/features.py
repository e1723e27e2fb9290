"""Feature maps between encoder and decoders: resampled, normalised, projected, or made from a single one."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from fedhca2.compiling import constant

STRIDES = [4, 8, 16, 32]


@constant
def interpolation(
    length: int, target: int, device: torch.device, dtype: torch.dtype = torch.float32, step: float | None = None
) -> Tensor:
    """The matrix [target, length] of linear interpolation between pixel centres, `step` apart.

    >>> interpolation(2, 4, torch.device("cpu"))
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500],
            [0.2500, 0.7500],
            [0.0000, 1.0000]])
    """
    place = (torch.arange(target, device=device) + 0.5) * (step or length / target) - 0.5
    distance = place.clamp(0, length - 1)[:, None] - torch.arange(length, device=device)
    return (1 - distance.abs()).clamp(min=0).to(dtype)


def resample(maps: Tensor, size: Sequence[int], step: float | None = None) -> Tensor:
    """Bilinear interpolation to `size` as two matrix products, so that its gradient needs no scattered sums.

    The weights are exact in bfloat16 if the scale is a power of two.
    """
    batch, channels, height, width = maps.shape
    rows, columns = (
        interpolation(*pair, maps.device, maps.dtype, step) for pair in zip((height, width), size, strict=True)
    )
    tall = rows @ maps.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
    full = columns @ tall.view(-1, width, channels)
    return full.view(batch, *size, channels).permute(0, 3, 1, 2)


class FeatureNorms(nn.ModuleList):
    """A LayerNorm on each map of a channels-last backbone; the result has channels second."""

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Convert [B, H, W, C] to normalised maps [B, C, H, W]."""
        return [norm(feature).permute(0, 3, 1, 2) for norm, feature in zip(self, features, strict=True)]


class Projections(nn.ModuleList):
    """Maps of any widths, projected to a common width and normalised, so that any decoder of that width fits."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__(
            nn.Sequential(nn.Conv2d(count, width, kernel_size=1), nn.GroupNorm(1, width)) for count in channels
        )

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Project every map."""
        return [project(feature) for project, feature in zip(self, features, strict=True)]


class FeaturePyramid(nn.Module):
    """Maps at strides 4, 8, 16 and 32 from the single map of a plain transformer, as in ViTDet (Li et al. 2022).

    Each is the map projected, resampled, and convolved. Resampling follows pixel positions, so patches of any size
    work, and patches beyond the image's edge have no effect inside.
    """

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.projections = nn.ModuleList(nn.Conv2d(channels, width, kernel_size=1) for _ in STRIDES)
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, kernel_size=3, padding=1), nn.GroupNorm(1, width)) for _ in STRIDES
        )
        self.patch = patch

    def forward(self, feature: Tensor, size: torch.Size) -> list[Tensor]:
        """Four maps of images of this size, from the map [B, C, H, W] of their patches."""
        normal = self.norm(feature.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        maps = []
        for stride, project, convolve in zip(STRIDES, self.projections, self.convolutions, strict=True):
            target = [-(-side // stride) for side in size]
            maps.append(convolve(resample(project(normal), target, stride / self.patch)))
        return maps
