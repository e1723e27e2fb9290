"""Which solids can affect which part of an image: of 8 by 8 tiles, with each solid replaced by its bounding ball.

Most solids cover little of an image, so a ray is tested against few of them.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes.coefficients import Array, inner
from fedhca2.data.scenes.solids import Kind

_SIDE = 8
TILES = _SIDE * _SIDE

Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


def pixels(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Column and row of each pixel, tile by tile; the last tiles may extend beyond the image.

    >>> [x.shape for x in pixels((16, 20), torch.device("cpu"))]
    [torch.Size([384]), torch.Size([384])]
    """
    height, width = (-(-side // _SIDE) for side in size)
    x = torch.arange(_SIDE * width, device=device).view(1, _SIDE, 1, width)
    y = torch.arange(_SIDE * height, device=device).view(_SIDE, 1, height, 1)
    return x.expand(_SIDE, -1, height, -1).flatten(), y.expand(-1, _SIDE, -1, width).flatten()


def untiled(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Convert values by tile [channels, b, n] to images [b, channels, height, width]."""
    height, width = (-(-side // _SIDE) for side in size)
    tiles = values.view(*values.shape[:2], _SIDE, _SIDE, height, width).permute(1, 0, 2, 4, 3, 5)
    return tiles.flatten(4).flatten(2, 3)[:, :, : size[0], : size[1]]


@dataclass(frozen=True)
class Balls:
    """For each solid [p] of several scenes: scene, kind, number within the kind, and a bounding ball."""

    scene: Numbers
    kind: Numbers
    number: Numbers
    centre: Array
    radius: Array


class Some(NamedTuple):
    """Pairs [k] of a solid of one kind and a tile: the solid's number within its kind and overall, tile and row."""

    kind: Kind
    number: Tensor
    solid: Tensor
    tile: Tensor
    row: Tensor


class Pairs(NamedTuple):
    """Pairs of solids and tiles: a tile has a row for each of its `places`, which `solids` [tiles, places] occupy."""

    places: int
    solids: Tensor
    by_kind: list[Some]


def in_view(balls: Balls, focal: Array, size: tuple[int, int]) -> Mask:
    """Which balls may be visible in which tiles [p, tiles]: those not entirely beyond an edge as seen from the eye."""
    depth, radius = -balls.centre[2][:, None], balls.radius[:, None]
    unit = focal[:, None] * (min(size) / 2)
    between = []
    for across, side in ((-balls.centre[1], size[0]), (balls.centre[0], size[1])):
        edges = np.arange(_SIDE + 1) * -(-side // _SIDE) - side / 2
        slope = (edges / unit)[balls.scene]
        beyond = (across[:, None] - slope * depth) / np.sqrt(1 + slope * slope)
        between.append((beyond[:, :-1] > -radius) & (beyond[:, 1:] < radius) & (depth > -radius))
    mask: Mask = (between[0][:, :, None] & between[1][:, None]).reshape(-1, TILES)
    return mask


def in_the_way(balls: Balls, frame: Array, low: Array, high: Array) -> Mask:
    """Which balls may shade which tiles [p, tiles], except planes.

    A tile's points lie between `low` and `high` [3, b, tiles] along the axes of the light's frame [3, 3, b].
    """
    solid = np.flatnonzero(balls.kind > Kind.PLANE)
    scene, radius = balls.scene[solid], balls.radius[solid, None]
    at = inner(frame.swapaxes(0, 1)[..., scene], balls.centre[:, None, solid])[..., None]
    above_low, below_high = at + radius > low[:, scene], at - radius < high[:, scene]
    mask = np.zeros((len(balls.kind), TILES), dtype=np.bool_)
    # Towards the light, a solid may be anywhere beyond the points.
    mask[solid] = above_low.all(0) & below_high[:2].all(0)
    return mask


def pair(balls: Balls, mask: Mask, device: torch.device) -> Pairs:
    """The pairs that a mask [p, tiles] marks; a tile's solids keep their order."""
    solid, tile = mask.nonzero()
    scene = balls.scene[solid]
    first = np.searchsorted(balls.scene, np.arange(balls.scene[-1] + 1))
    count = mask.cumsum(0)
    place = count[solid, tile] - 1 - (count[first] - mask[first])[scene, tile]
    places = int(place.max(initial=0)) + 1
    tile += scene * TILES
    row = tile * places + place
    solids = np.zeros((len(first) * TILES, places), dtype=np.int64)
    solids.reshape(-1)[row] = solid

    def of_kind(kind: Kind) -> Some:
        mine = balls.kind[solid] == kind
        columns = balls.number[solid[mine]], solid[mine], tile[mine], row[mine]
        return Some(kind, *torch.from_numpy(np.stack(columns)).to(device))

    kinds = [kind for kind in Kind if kind != Kind.SKY and mask[balls.kind == kind].any()]
    return Pairs(places, torch.from_numpy(solids).to(device), [of_kind(kind) for kind in kinds])
