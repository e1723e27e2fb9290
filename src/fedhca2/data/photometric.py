"""Photometric distortion: brightness, contrast, saturation and hue, each half of the time."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Distortion:
    """How colours change; the defaults change nothing."""

    brightness: float = 0.0
    contrast: float = 1.0
    contrast_first: bool = True
    saturation: float = 1.0
    hue: float = 0.0


def draw_distortion(rng: np.random.Generator) -> Distortion:
    """Brightness ± 32 of 255, contrast and saturation × 0.5 … 1.5, hue ± a tenth of the circle."""
    on = rng.random(4) < 0.5
    return Distortion(
        brightness=rng.uniform(-32, 32) * float(on[0]),
        contrast=rng.uniform(0.5, 1.5) if on[1] else 1.0,
        contrast_first=bool(rng.random() < 0.5),
        saturation=rng.uniform(0.5, 1.5) if on[2] else 1.0,
        hue=rng.uniform(-18, 18) / 180 * float(on[3]),
    )


def distort(image: Tensor, distortion: Distortion) -> Tensor:
    """Change the colours of an image [3, H, W] with values 0 … 255; contrast is before or after hue."""
    if distortion.brightness != 0.0:
        image = (image + distortion.brightness).clamp(0, 255)
    if distortion.contrast_first and distortion.contrast != 1.0:
        image = (image * distortion.contrast).clamp(0, 255)
    if distortion.saturation != 1.0 or distortion.hue != 0.0:
        hue, saturation, value = to_hsv(image)
        image = from_hsv((hue + distortion.hue) % 1.0, (saturation * distortion.saturation).clamp(0, 1), value)
    if not distortion.contrast_first and distortion.contrast != 1.0:
        image = (image * distortion.contrast).clamp(0, 255)
    return image


def to_hsv(image: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Hue and saturation in [0, 1], and value as bright as the image, [..., H, W] of [..., 3, H, W]."""
    red, green, blue = image.unbind(-3)
    value, lowest = image.amax(-3), image.amin(-3)
    chroma = value - lowest
    safe = chroma.clamp(min=1e-6)
    sector = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2 + (blue - red) / safe, 4 + (red - green) / safe),
    )
    return (sector / 6) % 1.0, chroma / value.clamp(min=1e-6), value


def from_hsv(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """The image [..., 3, H, W] of these hues, saturations and values.

    >>> image = torch.tensor([200.0, 30.0, 90.0]).view(3, 1, 1)
    >>> from_hsv(*to_hsv(image)).flatten().round().tolist()
    [200.0, 30.0, 90.0]
    """
    offsets = torch.tensor([5.0, 3.0, 1.0], device=hue.device).view(3, 1, 1)
    k = (offsets + hue.unsqueeze(-3) * 6) % 6
    return value.unsqueeze(-3) * (1 - saturation.unsqueeze(-3) * torch.minimum(k, 4 - k).clamp(0, 1))
