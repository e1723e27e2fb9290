"""A drawn scene: its solids as the camera has them, its light, and the random paint of both domains."""

from dataclasses import dataclass
from math import cos, sin

import numpy as np

from fedhca2.data.scenes.dice import Dice
from fedhca2.data.scenes.solids import CENTRE, Paint, Row, Table, moved


@dataclass(frozen=True)
class Scene:
    """One scene in the camera's frame: a row per solid, the sky first.

    `light` holds direction to the light (3), its colour (3), the ambient colour (3), haze per metre, noise, and the
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
    """Two shades about a base colour, under a texture whose grain is `scale` metres or so."""
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
    """The world as a camera at `eye` sees it, `view` the rotation from the camera's frame to the world's."""
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
