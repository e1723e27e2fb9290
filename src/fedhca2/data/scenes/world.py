"""Scenes to render: their solids as tensors in the camera's frame, and which of them can affect which part of an image.

An image is cut into 8 by 8 tiles, and each solid replaced by its bounding ball. Most solids cover little of an image,
so a ray is tested against few of them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import cos, prod, sin
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes.shapes import SHAPES, Array, Shape, inner
from fedhca2.data.scenes.solids import Dice, Kind, Row, Solid, Table, moved

SIDE = 8  # tiles along each side of an image
Numbers = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Scene:
    """One scene in the camera's frame: a row per solid, the sky first.

    `light` holds the direction to the light (3), its colour (3), the ambient colour (3), haze per metre, noise, and the
    focal length in halves of the picture's shorter side.
    """

    solids: Table
    light: Table
    key: int


def photographed(
    dice: Dice,
    world: list[Table],
    heaven: Row,
    *,
    eye: Row,
    view: Table,
    focal: float,
    elevation: tuple[float, float],
    haze: float,
) -> Scene:
    """The world as seen by a camera at `eye`; `view` is the rotation from the camera's frame to the world's.

    :param heaven: the sky.
    :param focal: the focal length, in halves of the picture's shorter side.
    :param elevation: the least and the largest height of the light, in radians.
    :param haze: how much of it there is per metre.
    """
    high, around = dice.uniform(*elevation), dice.uniform(-2.6, 2.6)
    # Around 0 the light is behind the camera.
    sun = np.array([cos(high) * sin(around), sin(high), cos(high) * cos(around)]) @ view
    table = np.concatenate(world)
    table[:, Solid.CENTRE] -= eye
    solids = np.concatenate([np.array([heaven]), moved(table, view.T, (0.0, 0.0, 0.0))])
    exposure, contrast = dice.uniform(0.75, 1.3), dice.uniform(0.3, 0.7)
    direct = exposure * (1 - contrast * 0.5) * np.array(dice.several(0.9, 1.1, 3)) * 1.1
    ambient = exposure * contrast * np.array(dice.several(0.85, 1.15, 3)) * 0.8
    light = np.concatenate([sun, direct, ambient, [haze, dice.uniform(0.005, 0.04), focal]])
    return Scene(solids, light, dice.below(2**31))


@dataclass(frozen=True)
class Light:
    """Several scenes' light: a frame [3, 3, b, 1] whose third row points to it, colours [3, b, 1], the rest [b, 1]."""

    frame: Tensor
    colour: Tensor
    ambient: Tensor
    haze: Tensor
    noise: Tensor
    key: Tensor


@dataclass(frozen=True)
class Shapes:
    """The coefficients of all solids of a kind: a row for each number, a column for each solid."""

    make: type[Shape]
    rows: Tensor
    fields: list[tuple[int, ...]]

    def pick(self, solids: Tensor) -> Shape:
        """The coefficients of some solids [k]; solids may repeat."""
        rows = torch.split(self.rows.index_select(1, solids)[..., None], [prod(field) for field in self.fields])
        return self.make._make(row.view(*field, -1, 1) for row, field in zip(rows, self.fields, strict=True))


@dataclass(frozen=True)
class World:
    """Several scenes: their p solids, light and camera.

    Of each solid: scene, kind, number within the kind, centre and radius of its bounding ball; as tensors its columns
    [columns, p] and the coefficients of its shape.
    """

    scene: Numbers
    kind: Numbers
    number: Numbers
    centre: Array
    radius: Array
    columns: Tensor
    shapes: dict[Kind, Shapes]
    frame: Array
    focal: Array
    light: Light


def pack(scenes: list[Scene], device: torch.device) -> World:
    """Concatenate the scenes' solids, in each scene in the order of their kinds."""

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    rows = np.concatenate([scene.solids for scene in scenes])
    owner = np.repeat(np.arange(len(scenes)), [len(scene.solids) for scene in scenes])
    order = np.lexsort((rows[:, Solid.KIND], owner))
    columns, owner = np.ascontiguousarray(rows[order].T, dtype=np.float32), owner[order]
    kind, texture = columns[Solid.KIND].astype(int), columns[Solid.TEXTURE]
    values = np.stack([scene.light for scene in scenes], axis=1).astype(np.float32)
    frame = _light_frame(values[:3])
    shapes, number = {}, np.zeros_like(owner)
    for k, shape in SHAPES.items():
        mine = np.flatnonzero(kind == k)
        number[mine] = np.arange(len(mine))
        fields = shape.prepare(columns[:, mine], frame[..., owner[mine]])
        merged = np.concatenate([field.reshape(prod(field.shape[:-1]), len(mine)) for field in fields])
        shapes[k] = Shapes(shape, tensor(merged), [field.shape[:-1] for field in fields])
    masks = [kind == Kind.SKY, kind <= Kind.PLANE, *(kind == k for k in (Kind.BOX, Kind.ELLIPSOID, Kind.CAPSULE))]
    masks += [texture == t for t in range(1, 5)]
    lights = tensor(values[3:, :, None])
    key = torch.tensor([[scene.key] for scene in scenes], device=device)
    light = Light(tensor(frame[..., None]), lights[:3], lights[3:6], lights[6], lights[7], key)
    radius = _radius(kind, columns[Solid.HALF])
    marked = tensor(np.concatenate([columns, np.array(masks, dtype=np.float32)]))
    return World(owner, kind, number, columns[Solid.CENTRE], radius, marked, shapes, frame, values[11], light)


def _radius(kind: Numbers, half: Array) -> Array:
    """The radius of each solid's bounding ball, with a margin for rounding; the sky and planes are unbounded."""
    exact = np.where(kind == Kind.BOX, np.sqrt((half * half).sum(0)), half.max(0))
    exact = np.where(kind == Kind.CAPSULE, half[0] + half[1], exact)
    radius: Array = np.where(kind <= Kind.PLANE, np.float32(np.inf), exact * np.float32(1.001) + np.float32(0.01))
    return radius


def _light_frame(direction: Array) -> Array:
    """Rows [3, 3, b] of rotations whose third row is the unit vector `direction` [3, b]."""
    x, y, z = direction
    flat = np.sqrt(x * x + y * y)
    first = np.stack([-y / flat, x / flat, np.zeros_like(x)])
    second = np.stack([-z * x / flat, -z * y / flat, flat])
    return np.stack([first, second, direction])


def pixels(size: tuple[int, int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Solid and row of each pixel, tile by tile; the last tiles may extend beyond the image.

    >>> [x.shape for x in pixels((16, 20), torch.device("cpu"))]
    [torch.Size([384]), torch.Size([384])]
    """
    height, width = _tile_size(size)
    x = torch.arange(SIDE * width, device=device).view(1, SIDE, 1, width)
    y = torch.arange(SIDE * height, device=device).view(SIDE, 1, height, 1)
    return x.expand(SIDE, -1, height, -1).flatten(), y.expand(-1, SIDE, -1, width).flatten()


def untiled(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Convert values by tile [channels, b, n] to images [b, channels, height, width]."""
    tiles = values.view(*values.shape[:2], SIDE, SIDE, *_tile_size(size)).permute(1, 0, 2, 4, 3, 5)
    return tiles.flatten(4).flatten(2, 3)[:, :, : size[0], : size[1]]


def _tile_size(size: Iterable[int]) -> list[int]:
    return [-(-side // SIDE) for side in size]


class KindInTiles(NamedTuple):
    """Pairs [k] of a solid of one kind and a tile: the solid's number within its kind and overall, tile and row."""

    kind: Kind
    number: Tensor
    solid: Tensor
    tile: Tensor
    row: Tensor


class InTiles(NamedTuple):
    """Pairs of solids and tiles: a tile has a row for each of its `places`, which `solids` [tiles, places] occupy."""

    places: int
    solids: Tensor
    by_kind: list[KindInTiles]


def in_view(world: World, size: tuple[int, int]) -> Mask:
    """Which solids may be visible in which tiles [p, tiles]: those not entirely beyond an edge as seen from the eye."""
    depth, radius = -world.centre[2][:, None], world.radius[:, None]
    unit = world.focal[:, None] * (min(size) / 2)
    between = []
    for across, side, tile in zip((-world.centre[1], world.centre[0]), size, _tile_size(size), strict=True):
        edges = np.arange(SIDE + 1) * tile - side / 2
        slope = (edges / unit)[world.scene]
        beyond = (across[:, None] - slope * depth) / np.sqrt(1 + slope * slope)
        between.append((beyond[:, :-1] > -radius) & (beyond[:, 1:] < radius) & (depth > -radius))
    mask: Mask = (between[0][:, :, None] & between[1][:, None]).reshape(-1, SIDE * SIDE)
    return mask


def in_the_way(world: World, low: Array, high: Array) -> Mask:
    """Which solids may shade which tiles [p, tiles], except planes.

    A tile's points lie between `low` and `high` [3, b, tiles] along the axes of the light's frame.
    """
    solid = np.flatnonzero(world.kind > Kind.PLANE)
    scene, radius = world.scene[solid], world.radius[solid, None]
    at = inner(world.frame.swapaxes(0, 1)[..., scene], world.centre[:, None, solid])[..., None]
    above_low, below_high = at + radius > low[:, scene], at - radius < high[:, scene]
    mask = np.zeros((len(world.kind), SIDE * SIDE), dtype=np.bool_)
    # Towards the light, a solid may be anywhere beyond the points.
    mask[solid] = above_low.all(0) & below_high[:2].all(0)
    return mask


def pair(world: World, mask: Mask, device: torch.device) -> InTiles:
    """The pairs that a mask [p, tiles] marks; a tile's solids keep their order."""
    solid, tile = mask.nonzero()
    scene = world.scene[solid]
    first = np.searchsorted(world.scene, np.arange(world.scene[-1] + 1))
    count = mask.cumsum(0)
    place = count[solid, tile] - 1 - (count[first] - mask[first])[scene, tile]
    places = int(place.max(initial=0)) + 1
    tile += scene * SIDE * SIDE
    row = tile * places + place
    solids = np.zeros((len(first) * SIDE * SIDE, places), dtype=np.int64)
    solids.reshape(-1)[row] = solid

    def of_kind(kind: Kind) -> KindInTiles:
        mine = world.kind[solid] == kind
        columns = world.number[solid[mine]], solid[mine], tile[mine], row[mine]
        return KindInTiles(kind, *torch.from_numpy(np.stack(columns)).to(device))

    kinds = [kind for kind in Kind if kind != Kind.SKY and mask[world.kind == kind].any()]
    return InTiles(places, torch.from_numpy(solids).to(device), [of_kind(kind) for kind in kinds])
