"""Solids as rows of numbers: how one is described, painted at random, built, moved and photographed.

A scene is a table with one row per solid. A frame has x to the right, y up and z towards the viewer. A solid has a
centre, three axes (the rows of a rotation) and half sizes along them; a capsule lies along its y axis, half sizes
(radius, half length, radius); a plane is seen from the side its y axis points to.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from math import cos, hypot, sin
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T")
Vector = tuple[float, float, float]
Row = list[float]
Table = NDArray[np.float64]


class Dice:
    """A NumPy generator read in blocks: drawing a scene takes hundreds of single numbers, each a slow call otherwise.

    >>> dice = Dice([0, 1])
    >>> 2 <= dice.uniform(2, 3) < 3, dice.pick("aaa"), len(dice.several(0, 1, 5))
    (True, 'a', 5)
    """

    def __init__(self, seed: Sequence[int]) -> None:
        self._generator = np.random.default_rng(seed)
        self._block: list[float] = []

    def _next(self) -> float:
        if not self._block:
            self._block = self._generator.random(256).tolist()
        return self._block.pop()

    def uniform(self, low: float, high: float) -> float:
        """A number in [low, high)."""
        return low + (high - low) * self._next()

    def several(self, low: float, high: float, count: int) -> list[float]:
        """Several numbers in [low, high)."""
        return [low + (high - low) * self._next() for _ in range(count)]

    def below(self, bound: int) -> int:
        """A whole number from 0 to bound - 1."""
        return int(bound * self._next())

    def pick(self, options: Sequence[T]) -> T:
        """One of the options."""
        return options[self.below(len(options))]

    def chance(self, probability: float) -> bool:
        """True with this probability."""
        return self._next() < probability


class Kind(IntEnum):
    """The shapes that rays can meet; a ray that misses everything else meets the sky."""

    SKY = 0
    PLANE = 1
    BOX = 2
    ELLIPSOID = 3
    CAPSULE = 4


class Solid:
    """Where a row has its numbers; a packed table has further columns, 0 or 1.

    CODE is a class of NYUD-v2 in a room, and a number of CONTEXT_IDS outdoors.
    """

    CENTRE, AXES, HALF, COLOURS = slice(0, 3), slice(3, 12), slice(12, 15), slice(15, 21)
    TEXTURE, FREQUENCY, OFFSET, KIND, CODE, PART, OBJECT = range(21, 28)
    IS_SKY, IS_FLAT, IS_BOX, IS_ELLIPSOID, IS_CAPSULE = range(28, 33)  # the sky and planes are flat
    IS_CHECKED, IS_STRIPED, IS_BLOTCHED, IS_CELLED = range(33, 37)  # all textures except plain


FAR = 2000.0  # metres to the sky
UPRIGHT: tuple[Vector, Vector, Vector] = ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0))


class Paint(NamedTuple):
    """Two colours and the texture that mixes them: 0 plain, 1 checks, 2 stripes, 3 blotches, 4 cells."""

    colours: tuple[float, ...]
    texture: int
    frequency: float
    offset: float


def mix_paint(dice: Dice, texture: int | None = None) -> Paint:
    """Any two colours under any texture (or this one)."""
    if texture is None:
        texture = dice.below(5)
    return Paint(tuple(dice.several(0.04, 0.75, 6)), texture, dice.uniform(2.5, 7.0), dice.uniform(0, 1))


def tint_paint(dice: Dice, base: Vector, scale: float = 1.0) -> Paint:
    """Two shades of a base colour, under a texture whose grain is about `scale` metres."""
    bright = dice.uniform(0.5, 1.6)
    shades = [min(0.9, max(0.02, c * bright * dice.uniform(0.7, 1.35))) for c in (*base, *base)]
    return Paint(tuple(shades), dice.below(5), dice.uniform(0.8, 2.5) / scale, dice.uniform(0, 1))


def _row(kind: Kind, centre: Vector, axes: Sequence[Vector], half: Vector, paint: Paint, code: int, part: int) -> Row:
    (ax, ay, az), (colours, texture, frequency, offset) = axes, paint
    return [*centre, *ax, *ay, *az, *half, *colours, texture, frequency, offset, kind, code, part, 0.0]


def sky(paint: Paint, code: int = 0) -> Row:
    """What a ray meets if it meets nothing else: a dome whose own unit of length is its radius."""
    shrunk = [(x / FAR, y / FAR, z / FAR) for x, y, z in UPRIGHT]
    return _row(Kind.SKY, (0.0, 0.0, 0.0), shrunk, (1.0, 1.0, 1.0), paint, code, 0)


def plane(point: Vector, axes: Sequence[Vector], paint: Paint, code: int = 0) -> Row:
    """A plane through a point, its second axis the normal."""
    return _row(Kind.PLANE, point, axes, (1.0, 1.0, 1.0), paint, code, 0)


def box(centre: Vector, half: Vector, paint: Paint, code: int = 0) -> Row:
    """An upright box."""
    return _row(Kind.BOX, centre, UPRIGHT, half, paint, code, 0)


def ellipsoid(centre: Vector, half: Vector, paint: Paint, code: int = 0, part: int = 0) -> Row:
    """An upright ellipsoid."""
    return _row(Kind.ELLIPSOID, centre, UPRIGHT, half, paint, code, part)


def capsule(a: Vector, b: Vector, radius: float, paint: Paint, code: int = 0, part: int = 0) -> Row:
    """All points within `radius` of the segment from a to b."""
    x, y, z = (q - p for p, q in zip(a, b, strict=True))
    length = (x * x + y * y + z * z) ** 0.5
    x, y, z = x / length, y / length, z / length
    # Any perpendicular will do: in the horizontal plane, except for an upright capsule.
    flat = hypot(x, z)
    px, pz = (z / flat, -x / flat) if flat > 1e-6 else (1.0, 0.0)
    axes = ((px, 0.0, pz), (x, y, z), (-y * pz, x * pz - z * px, y * px))
    centre = ((a[0] + b[0]) / 2, (a[1] + b[1]) / 2, (a[2] + b[2]) / 2)
    return _row(Kind.CAPSULE, centre, axes, (radius, length / 2, radius), paint, code, part)


def legs(x: float, z: float, height: float, thick: float, paint: Paint, code: int = 0) -> list[Row]:
    """Four upright boxes at the corners (±x, ±z), from the ground to `height`; `thick` is half their width."""
    half = (thick, height / 2, thick)
    return [box((sx * x, height / 2, sz * z), half, paint, code) for sx in (-1, 1) for sz in (-1, 1)]


def rotation(yaw: float, pitch: float = 0.0, roll: float = 0.0) -> Table:
    """The rotation that rolls about z, then pitches about x, then turns about y."""
    cy, sy, cp, sp, cr, sr = cos(yaw), sin(yaw), cos(pitch), sin(pitch), cos(roll), sin(roll)
    about_y = np.array([[cy, 0, sy], [0, 1, 0], [-sy, 0, cy]])
    about_x = np.array([[1, 0, 0], [0, cp, -sp], [0, sp, cp]])
    about_z = np.array([[cr, -sr, 0], [sr, cr, 0], [0, 0, 1]])
    turned: Table = about_y @ about_x @ about_z
    return turned


def move(rows: Sequence[Row] | Table, rotation: Table, shift: Sequence[float]) -> Table:
    """The solids after a rotation about the origin and then a shift."""
    table = np.array(rows)
    table[:, Solid.CENTRE] = table[:, Solid.CENTRE] @ rotation.T + shift
    table[:, Solid.AXES] = (table[:, Solid.AXES].reshape(-1, 3, 3) @ rotation.T).reshape(-1, 9)
    return table


def reach(table: Table) -> Table:
    """How far each solid extends from its centre along x, y and z [solids, 3] (planes aside)."""
    half, kind = table[:, Solid.HALF], table[:, Solid.KIND, None]
    spans = np.abs(table[:, Solid.AXES].reshape(-1, 3, 3)) * half[:, :, None]
    as_capsule = spans[:, 1] + half[:, :1]
    as_ellipsoid = np.sqrt((spans**2).sum(1))
    extent: Table = np.where(kind == Kind.BOX, spans.sum(1), np.where(kind == Kind.CAPSULE, as_capsule, as_ellipsoid))
    return extent


def stand(rows: list[Row]) -> Table:
    """One object's solids, centred on the y axis and lifted or lowered until the lowest point touches y = 0."""
    table = np.array(rows)
    extent = reach(table)
    low, high = (table[:, Solid.CENTRE] - extent).min(0), (table[:, Solid.CENTRE] + extent).max(0)
    table[:, Solid.CENTRE] -= ((low[0] + high[0]) / 2, low[1], (low[2] + high[2]) / 2)
    return table


def size(table: Table) -> Table:
    """Width, height and depth of a standing object."""
    extent: Table = ((np.abs(table[:, Solid.CENTRE]) + reach(table)) * (2, 1, 2)).max(0)
    return extent


@dataclass(frozen=True)
class Scene:
    """One scene in the camera's frame: a row per solid, the sky first.

    `light` holds the direction to the light (3), its colour (3), the ambient colour (3), haze per metre, noise, and the
    focal length in halves of the picture's shorter side.
    """

    solids: Table
    light: Table
    key: int


def photograph(
    dice: Dice,
    world: Sequence[Row],
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
    table = np.array(world)
    table[:, Solid.CENTRE] -= eye
    solids = np.concatenate([np.array([heaven]), move(table, view.T, (0.0, 0.0, 0.0))])
    exposure, contrast = dice.uniform(0.75, 1.3), dice.uniform(0.3, 0.7)
    direct = exposure * (1 - contrast * 0.5) * np.array(dice.several(0.9, 1.1, 3)) * 1.1
    ambient = exposure * contrast * np.array(dice.several(0.85, 1.15, 3)) * 0.8
    light = np.concatenate([sun, direct, ambient, [haze, dice.uniform(0.005, 0.04), focal]])
    return Scene(solids, light, dice.below(2**31))
