"""The appearance of a scene: textures, light, haze and sensor noise."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhca2.data.scenes.intersection import dot
from fedhca2.data.scenes.solids import (
    COLOURS,
    FREQUENCY,
    IS_BLOTCHED,
    IS_CELLED,
    IS_CHECKED,
    IS_SKY,
    IS_STRIPED,
    OFFSET,
)

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
    """Hash int64 numbers to 32 well-mixed bits, the same on every device.

    >>> scramble(torch.tensor([1, 2]))
    tensor([3901296832, 3507691905])
    """
    number = (number & _WORD).mul_(0x7FEB352D).bitwise_and_(_WORD)
    number.bitwise_xor_(number >> 15).mul_(0x046CA68B).bitwise_and_(_WORD)
    return number.bitwise_xor_(number >> 16)


def albedo(hit: Tensor, local: Tensor) -> Tensor:
    """The colour [3, b, n] of each surface point: its solid's two colours, mixed by the solid's texture."""
    place = (local * hit[FREQUENCY]).add_(hit[OFFSET])
    cell = place.floor()
    checks = (cell[0] + cell[1]).add_(cell[2]).remainder_(2)
    i, j, k = cell.long()
    cells = scramble(i.mul_(7919).add_(j.mul_(104729)).add_(k.mul_(1299709))) / float(_WORD)
    x, y, z = place
    stripes = (0.6 * y).add_(x).add_(0.3 * z).mul_(3.1416).sin_().mul_(4).clamp_(-1, 1).add_(1).div_(2)
    waves = (2.3 * x).add_((1.3 * y).sin_(), alpha=2).sin_()
    blotches = (2.1 * y).add_((1.7 * z).add_(x).sin_(), alpha=2).sin_().add_(waves).div_(4).add_(0.5)
    mix = checks.mul_(hit[IS_CHECKED]).addcmul_(stripes, hit[IS_STRIPED])
    mix.addcmul_(blotches, hit[IS_BLOTCHED]).addcmul_(cells, hit[IS_CELLED])
    return torch.lerp(hit[COLOURS][:3], hit[COLOURS][3:], mix)


def shade(hit: Tensor, local: Tensor, normal: Tensor, lit: Tensor, distance: Tensor, light: Light) -> Tensor:
    """Linear colour [3, b, n]: albedo times ambient and direct light, faded into the haze; the sky keeps its colour."""
    colour = albedo(hit, local)
    direct = dot(normal, light.frame[2]).clamp_(min=0).mul_(lit)
    lighted = (direct * light.colour).add_(light.ambient).mul_(colour)
    clear = (distance * -light.haze).exp_()
    seen = lighted.lerp_(light.ambient * 1.4, 1 - clear)
    return seen.lerp_(colour, hit[IS_SKY])


def expose(colour: Tensor, pixel: Tensor, light: Light) -> Tensor:
    """The 8-bit image [3, b, n]: gamma 2, and noise that depends only on the scene's key and the pixel's number."""
    number = pixel * 3 + torch.arange(3, device=pixel.device)[:, None]
    bits = scramble(number[:, None] + light.key)
    # Two halves of 16 bits add up to a triangular distribution: mean 65535, standard deviation 26755.
    tent = (bits & 0xFFFF).add_(bits >> 16).sub_(0xFFFF)
    noise = tent * (light.noise / 26755)
    return noise.add_(colour.clamp_(0, 1).sqrt_()).mul_(255).round_().clamp_(0, 255).to(torch.uint8)
