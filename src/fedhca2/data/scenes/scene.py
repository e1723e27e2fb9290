"""A drawn scene: its solids in the camera's frame, its light and paint; and several scenes as one set of tensors."""

from collections.abc import Callable
from dataclasses import dataclass
from math import cos, prod, sin

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes import coefficients
from fedhca2.data.scenes.coefficients import Array, Box, Capsule, Ellipsoid, Plane, Shape
from fedhca2.data.scenes.dice import Dice
from fedhca2.data.scenes.shading import Light
from fedhca2.data.scenes.solids import CENTRE, HALF, KIND, TEXTURE, Kind, Paint, Row, Table, moved
from fedhca2.data.scenes.tiles import Balls

_KINDS: dict[Kind, tuple[Callable[..., Shape], Callable[[Array, Array], tuple[Array, ...]]]] = {
    Kind.PLANE: (Plane, coefficients.plane),
    Kind.BOX: (Box, coefficients.box),
    Kind.ELLIPSOID: (Ellipsoid, coefficients.ellipsoid),
    Kind.CAPSULE: (Capsule, coefficients.capsule),
}


@dataclass(frozen=True)
class Scene:
    """One scene in the camera's frame: a row per solid, the sky first.

    `light` holds the direction to the light (3), its colour (3), the ambient colour (3), haze per metre, noise, and the
    focal length in halves of the picture's shorter side.
    """

    solids: Table
    light: Table
    key: int


def mixed_paint(dice: Dice, texture: int | None = None) -> Paint:
    """Any two colours under any texture (or this one)."""
    if texture is None:
        texture = dice.below(5)
    return Paint(tuple(dice.several(0.04, 0.75, 6)), texture, dice.uniform(2.5, 7.0), dice.uniform(0, 1))


def tinted_paint(dice: Dice, base: tuple[float, float, float], scale: float = 1.0) -> Paint:
    """Two shades of a base colour, under a texture whose grain is about `scale` metres."""
    bright = dice.uniform(0.5, 1.6)
    shades = [min(0.9, max(0.02, c * bright * dice.uniform(0.7, 1.35))) for c in (*base, *base)]
    return Paint(tuple(shades), dice.below(5), dice.uniform(0.8, 2.5) / scale, dice.uniform(0, 1))


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
    """The world as seen by a camera at `eye`; `view` is the rotation from the camera's frame to the world's."""
    high, around = dice.uniform(*elevation), dice.uniform(-2.6, 2.6)
    # Around 0 the light is behind the camera.
    sun = np.array([cos(high) * sin(around), sin(high), cos(high) * cos(around)]) @ view
    table = np.concatenate(world)
    table[:, CENTRE] -= eye
    solids = np.concatenate([np.array([heaven]), moved(table, view.T, (0.0, 0.0, 0.0))])
    exposure, contrast = dice.uniform(0.75, 1.3), dice.uniform(0.3, 0.7)
    direct = exposure * (1 - contrast * 0.5) * np.array(dice.several(0.9, 1.1, 3)) * 1.1
    ambient = exposure * contrast * np.array(dice.several(0.85, 1.15, 3)) * 0.8
    light = np.concatenate([sun, direct, ambient, [haze, dice.uniform(0.005, 0.04), focal]])
    return Scene(solids, light, dice.below(2**31))


@dataclass(frozen=True)
class Shapes:
    """The coefficients of all solids of a kind: a row for each number, a column for each solid."""

    make: Callable[..., Shape]
    rows: Tensor
    fields: list[tuple[int, ...]]

    def pick(self, solids: Tensor) -> Shape:
        """The coefficients of some solids [k]; solids may repeat."""
        rows = torch.split(self.rows.index_select(1, solids)[..., None], [prod(field) for field in self.fields])
        return self.make(*(row.view(*field, -1, 1) for row, field in zip(rows, self.fields, strict=True)))


@dataclass(frozen=True)
class World:
    """Several scenes: bounding balls of solids, the solids' columns [columns, p] and coefficients, light and camera."""

    balls: Balls
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
    order = np.lexsort((rows[:, KIND], owner))
    columns, owner = np.ascontiguousarray(rows[order].T, dtype=np.float32), owner[order]
    kind, texture = columns[KIND].astype(int), columns[TEXTURE]
    values = np.stack([scene.light for scene in scenes], axis=1).astype(np.float32)
    frame = _light_frame(values[:3])
    shapes = {}
    number = np.zeros_like(owner)
    for k, (make, work_out) in _KINDS.items():
        mine = np.flatnonzero(kind == k)
        number[mine] = np.arange(len(mine))
        fields = work_out(columns[:, mine], frame[..., owner[mine]])
        merged = np.concatenate([field.reshape(prod(field.shape[:-1]), len(mine)) for field in fields])
        shapes[k] = Shapes(make, tensor(merged), [field.shape[:-1] for field in fields])
    masks = [kind == Kind.SKY, kind <= Kind.PLANE, *(kind == k for k in (Kind.BOX, Kind.ELLIPSOID, Kind.CAPSULE))]
    masks += [texture == t for t in range(1, 5)]
    lights = tensor(values[3:, :, None])
    key = torch.tensor([[scene.key] for scene in scenes], device=device)
    return World(
        Balls(owner, kind, number, columns[CENTRE], _radius(kind, columns[HALF])),
        tensor(np.concatenate([columns, np.array(masks, dtype=np.float32)])),
        shapes,
        frame,
        values[11],
        Light(tensor(frame[..., None]), lights[:3], lights[3:6], lights[6], lights[7], key),
    )


def _radius(kind: NDArray[np.int64], half: Array) -> Array:
    """The radius of each solid's bounding ball, with a margin for rounding; the sky and planes are unbounded."""
    exact = np.where(kind == Kind.BOX, np.sqrt((half * half).sum(0)), half.max(0))
    exact = np.where(kind == Kind.CAPSULE, half[0] + half[1], exact)
    radius: Array = np.where(kind <= Kind.PLANE, np.float32(np.inf), exact * np.float32(1.001) + np.float32(0.01))
    return radius


def _light_frame(direction: Array) -> Array:
    """Rows [3, 3, b] of rotations whose third row is the unit vector `direction` [3, b]."""
    x, y, z = direction
    flat = np.sqrt(x * x + y * y)
    nothing = np.zeros_like(x)
    first = np.stack([-y / flat, x / flat, nothing])
    second = np.stack([-z * x / flat, -z * y / flat, flat])
    return np.stack([first, second, direction])
