"""Photometric distortion in whole grey levels: brightness, contrast, saturation and hue, each applied half of the time.

Rounding is OpenCV's for images of 8 bits. The numbers are floats, but integral and small enough to be exact, so the
result is the same on every device.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SECTOR = 30  # a sixth of the circle of hues: red is 0, green 60, blue 120
WHOLE = 255 * SECTOR  # the largest product of a saturation and a part of a sector


@dataclass(frozen=True)
class Distortion:
    """Changes of the colours of one image, or of each in a batch [B, 1, 1, 1]; the defaults only round."""

    brightness: float | Tensor = 0.0
    contrast_before: float | Tensor = 1.0  # before saturation and hue
    saturation: float | Tensor = 1.0
    hue: float | Tensor = 0  # in whole steps
    contrast_after: float | Tensor = 1.0


def distort(image: Tensor, distortion: Distortion) -> Tensor:
    """Distort the colours of images [..., 3, H, W] with values 0 … 255."""
    image = _levels(image.floor() + distortion.brightness)
    hue, saturation, value = to_hsv(_levels(image * distortion.contrast_before))
    image = from_hsv(hue + distortion.hue, _levels(saturation * distortion.saturation), value)
    return _levels(image * distortion.contrast_after)


def _levels(values: Tensor) -> Tensor:
    """Clamp values to the range of 8 bits, in place."""
    return values.clamp_(0, 255).floor_()


def to_hsv(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue -30 … 150, saturation and value 0 … 255 of an image's grey levels: [..., 1, H, W] of [..., 3, H, W]."""
    red, green, blue = image.chunk(3, dim=-3)
    value = torch.maximum(torch.maximum(red, green), blue)
    chroma = value - torch.minimum(torch.minimum(red, green), blue)
    # A lerp by 0 or 1 selects like `where`, several times as fast on a CPU.
    unless_red, unless_green = (value - red).clamp_(max=1), (value - green).clamp_(max=1)
    turn = torch.add(red - green, chroma, alpha=4)
    turn = torch.lerp(torch.add(blue - red, chroma, alpha=2), turn, unless_green)
    turn = torch.lerp(green - blue, turn, unless_red)
    return _share(turn, chroma, SECTOR), _share(chroma, value, 255), value


def _share(part: Tensor, whole: Tensor, full: int) -> Tensor:
    """`full` · part / whole to the nearest integer, with the reciprocal rounded first, to 12 fractional bits."""
    unit = 4096
    reciprocal = (full * unit / whole.clamp(min=1)).round_()
    return reciprocal.mul_(part).add_(unit / 2).div_(unit).floor_()


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The image [..., 3, H, W] of these hues -90 … 180, saturations and values.

    >>> image = torch.tensor([200.0, 30.0, 90.0]).view(3, 1, 1)
    >>> from_hsv(*to_hsv(image)).flatten().tolist()
    [200.0, 29.0, 92.0]
    """
    primaries = torch.arange(0.0, 6 * SECTOR, 2 * SECTOR, device=hue.device).view(3, 1, 1)
    # A channel is at full value within one sector of its own hue, around the circle, and lowest from two sectors on.
    loss = (hue - primaries).abs_().sub_(3 * SECTOR).abs_().neg_().add_(2 * SECTOR).clamp_(0, SECTOR)
    # Levels are multiples of 1 / WHOLE; adding half of that keeps whole levels whole, however products are rounded.
    return loss.mul_(value * saturation * (-1 / WHOLE)).add_(value + 0.5 / WHOLE).floor_()
