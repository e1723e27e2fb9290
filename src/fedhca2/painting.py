"""Painting a prediction or a label as an image, uint8 [3, H, W].

A map [C, H, W] becomes colours, with ignored pixels in dark grey; a vector [C] becomes lines of text and bars.
"""

from collections.abc import Sequence
from math import isnan

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from fedhca2.labels import IGNORE

DARK_GREY = 64
VECTOR_SIZE, LINE = (192, 144), 18  # width and height of a painted vector, and the height of a line
# Dark violet, blue, green, yellow: evenly spaced in lightness, so that equal steps in depth look equal.
DEPTH_COLOURS = torch.tensor([*bytes.fromhex("440154 46327f 365c8d 277f8e 1fa187 4ac26d 9fda3a fde725")]).view(-1, 3)


def voc_palette(classes: int = 256) -> Tensor:
    """PASCAL VOC's colours [classes, 3]: the class's bits, three at a time, become the high bits of R, G and B.

    >>> voc_palette(3).tolist()
    [[0, 0, 0], [128, 0, 0], [0, 128, 0]]
    """
    index, colours = torch.arange(classes), torch.zeros(classes, 3, dtype=torch.int64)
    for bit in range(8):
        for channel in range(3):
            colours[:, channel] |= ((index >> (3 * bit + channel)) & 1) << (7 - bit)
    return colours.to(torch.uint8)


def _finish(image: Tensor, map: Tensor) -> Tensor:
    """Convert the image to bytes, with ignored and non-finite pixels of the map in grey."""
    return image.to(torch.uint8).masked_fill(((map == IGNORE) | map.isnan()).all(dim=0), DARK_GREY)


def paint_classes(map: Tensor, names: Sequence[str] = ()) -> Tensor:
    """Paint a class map in the VOC palette. Black is for the background: without one, the first class is not black."""
    first = 1 if names and names[0] != "background" else 0
    palette = voc_palette(256 + first)[first:].to(map.device)
    return _finish(palette[map[0].long().clamp(0, 255)].permute(2, 0, 1), map)


def paint_grey(map: Tensor) -> Tensor:
    """Paint a probability or share in 0 … 1 from black to white."""
    return _finish((map.float().clamp(0, 1) * 255).round().expand(3, -1, -1), map)


def paint_normals(map: Tensor) -> Tensor:
    """Paint normals with x, y, z as red, green, blue."""
    return _finish(((map.float().clamp(-1, 1) + 1) * 127.5).round(), map)


def paint_depth(map: Tensor, nearest: float = 0.0, farthest: float = 10.0) -> Tensor:
    """Paint depth from the nearest (dark violet) to the farthest and beyond (yellow), by default from 0 to 10 m."""
    share = (map[0].float().nan_to_num() - nearest) / max(farthest - nearest, 1e-6)
    position = share.clamp(0, 1) * (len(DEPTH_COLOURS) - 1)
    below = position.long().clamp(max=len(DEPTH_COLOURS) - 2)
    colours = DEPTH_COLOURS.to(map.device).float()
    image = torch.lerp(colours[below], colours[below + 1], (position - below)[..., None])
    return _finish(image.round().permute(2, 0, 1), map)


def paint_heat(map: Tensor) -> Tensor:
    """Paint maps of heat, one per channel, as the largest of them, from black to white."""
    nothing = (map == IGNORE).all(dim=0, keepdim=True)
    hottest = map.float().masked_fill(map == IGNORE, 0).amax(dim=0, keepdim=True)
    return paint_grey(hottest.masked_fill(nothing, IGNORE))


def paint(values: Tensor, names: Sequence[str] = ()) -> Tensor:
    """Paint anything: three channels as colours from −1 to 1, other maps as heat, and a vector as numbers."""
    if values.ndim == 1:
        return paint_numbers(values, names)
    return paint_normals(values) if len(values) == 3 else paint_heat(values)


def paint_class(vector: Tensor, names: Sequence[str] = ()) -> Tensor:
    """Write the name of a class [1]."""
    value = float(vector[0])
    return _write_lines([("unknown" if isnan(value) else class_name(names, int(value)), None)])


def paint_numbers(vector: Tensor, names: Sequence[str] = ()) -> Tensor:
    """Write numbers [C] with their names."""
    values = vector.float().tolist()
    return _write_lines(
        [(f"{class_name(names, i)}: {'unknown' if isnan(v) else f'{v:.4g}'}", None) for i, v in enumerate(values)]
    )


def paint_bars(vector: Tensor, names: Sequence[str] = ()) -> Tensor:
    """Draw bars for the largest of some shares [C] from 0 to 1."""
    shares = sorted(((float(v), i) for i, v in enumerate(vector.float().nan_to_num(0.0))), key=lambda pair: -pair[0])
    return _write_lines([(class_name(names, i), share) for share, i in shares])


def class_name(names: Sequence[str], number: int) -> str:
    """The name of a class, or its number if it has none."""
    return names[number] if 0 <= number < len(names) else str(number)


def _write_lines(rows: Sequence[tuple[str, float | None]]) -> Tensor:
    """Write lines of text, each with a bar if it has a share, as many as fit."""
    image = Image.new("RGB", VECTOR_SIZE, "white")
    draw, font = ImageDraw.Draw(image), ImageFont.load_default(LINE - 4)
    room = VECTOR_SIZE[1] // LINE
    left, right = VECTOR_SIZE[0] // 2, VECTOR_SIZE[0] - 4
    for row, (text, share) in enumerate(rows[:room]):
        top = row * LINE
        if share is not None:
            draw.rectangle((left, top + 3, right, top + LINE - 2), "#e6e6e6")
            end = left + (right - left) * min(max(share, 0.0), 1.0)
            draw.rectangle((left, top + 3, end, top + LINE - 2), "#0072b2")
        draw.text((4, top + 1), text if share is None else text[:12], "black", font)
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)
