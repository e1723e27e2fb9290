"""How a scene looks: textures, light, haze and the sensor's noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhca2.data.scenes.cast import dot
from fedhca2.data.scenes.solids import COLOURS, FREQUENCY, KIND, OFFSET, TEXTURE, Kind

_WORD = 0xFFFFFFFF


@dataclass(frozen=True)
class Light:
    """Several scenes' light: a frame [3, 3, b, 1] whose third row points to it, colours [3, b, 1], the rest [b, 1]."""

    frame: Tensor
    colour: Tensor
    ambient: Tensor
    haze: Tensor
    noise: Tensor
    key: Tensor


def scramble(number: Tensor) -> Tensor:
    """A hash of int64 numbers to 32 well-mixed bits, the same on every device.

    >>> scramble(torch.tensor([1, 2]))
    tensor([3901296832, 3507691905])
    """
    number = (number & _WORD) * 0x7FEB352D & _WORD
    number = (number ^ number >> 15) * 0x046CA68B & _WORD
    return number ^ number >> 16


def albedo(hit: Tensor, local: Tensor) -> Tensor:
    """The colour [3, b, n] of each surface point: its solid's two colours, mixed by the solid's texture."""
    x, y, z = local * hit[FREQUENCY] + hit[OFFSET]
    cx, cy, cz = x.floor(), y.floor(), z.floor()
    checks = (cx + cy + cz).remainder(2)
    stripes = (x + 0.6 * y + 0.3 * z).mul_(3.1416).sin_().mul_(4).clamp_(-1, 1).add_(1).div_(2)
    blotches = ((2.3 * x + 2 * (1.3 * y).sin()).sin_() + (2.1 * y + 2 * (1.7 * z + x).sin()).sin_()) / 4 + 0.5
    cells = scramble(cx.long() * 7919 + cy.long() * 104729 + cz.long() * 1299709) / float(_WORD)
    kind = hit[TEXTURE]
    mix = checks * (kind == 1) + stripes * (kind == 2) + blotches * (kind == 3) + cells * (kind == 4)
    return torch.lerp(hit[COLOURS][:3], hit[COLOURS][3:], mix)


def shade(hit: Tensor, local: Tensor, normal: Tensor, lit: Tensor, distance: Tensor, light: Light) -> Tensor:
    """Linear colour [3, b, n]: albedo times ambient and direct light, faded into the haze; the sky keeps its own."""
    colour = albedo(hit, local)
    direct = dot(normal, light.frame[2]).clamp_(min=0) * lit
    lighted = colour * (light.ambient + direct * light.colour)
    veil = 1 - torch.exp(-distance * light.haze)
    seen = torch.lerp(lighted, light.ambient * 1.4, veil)
    return torch.lerp(seen, colour, (hit[KIND] == Kind.SKY).float())


def expose(colour: Tensor, pixel: Tensor, light: Light) -> Tensor:
    """The 8-bit picture [3, b, n]: gamma 2, and noise that depends on the scene's key and the pixel's number alone."""
    number = pixel * 3 + torch.arange(3, device=pixel.device)[:, None]
    bits = scramble(number[:, None] + light.key)
    # Two halves of 16 bits add up to a tent: mean 65535, deviation 26755.
    tent = (bits & 0xFFFF) + (bits >> 16)
    noise = (tent - 0xFFFF) * (light.noise / 26755)
    return (colour.clamp(0, 1).sqrt_() + noise).mul_(255).round_().clamp_(0, 255).to(torch.uint8)
