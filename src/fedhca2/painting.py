"""Painting a prediction or label map [1 or 3, H, W] as an image, uint8 [3, H, W], with ignored pixels in dark grey."""

import torch
from torch import Tensor

from fedhca2.labels import IGNORE

DARK_GREY = 64
FARTHEST_METRES = 10.0
# Dark violet, blue, green, yellow: evenly spaced in lightness, so that equal steps in depth look equal.
DEPTH_COLOURS = torch.tensor(
    [
        [68, 1, 84],
        [70, 50, 127],
        [54, 92, 141],
        [39, 127, 142],
        [31, 161, 135],
        [74, 194, 109],
        [159, 218, 58],
        [253, 231, 37],
    ]
)


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


def paint_classes(map: Tensor) -> Tensor:
    """Paint a class map in the VOC palette."""
    return _finish(voc_palette().to(map.device)[map[0].long()].permute(2, 0, 1), map)


def paint_grey(map: Tensor) -> Tensor:
    """Paint a probability or share in 0 … 1 from black to white."""
    return _finish((map.float().clamp(0, 1) * 255).round().expand(3, -1, -1), map)


def paint_normals(map: Tensor) -> Tensor:
    """Paint normals with x, y, z as red, green, blue."""
    return _finish(((map.float().clamp(-1, 1) + 1) * 127.5).round(), map)


def paint_depth(map: Tensor) -> Tensor:
    """Paint depth from 0 m (dark violet) to 10 m and beyond (yellow)."""
    place = (map[0].float().nan_to_num() / FARTHEST_METRES).clamp(0, 1) * (len(DEPTH_COLOURS) - 1)
    below = place.long().clamp(max=len(DEPTH_COLOURS) - 2)
    colours = DEPTH_COLOURS.to(map.device).float()
    image = torch.lerp(colours[below], colours[below + 1], (place - below)[..., None])
    return _finish(image.round().permute(2, 0, 1), map)
