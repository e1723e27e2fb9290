"""Drawing a room: walls, floor and ceiling about the camera, furniture along the walls, things on them."""

import numpy as np

from fedhca2.data.scenes.dice import Dice
from fedhca2.data.scenes.furniture import ID, KINDS, in_the_middle, on_wall
from fedhca2.data.scenes.scene import Scene, mixed_paint, photographed, tinted_paint
from fedhca2.data.scenes.solids import Row, moved, plane, sky, turn

_X, _Y, _Z = (1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)


def draw_room(dice: Dice) -> Scene:
    """A room of at most 5 by 5.5 by 3 metres, seen from inside; nothing in it is 10 metres away."""
    wide, deep, high = dice.uniform(1.7, 2.5), dice.uniform(1.9, 2.75), dice.uniform(2.3, 3.0)
    rows = _shell(dice, wide, deep, high)
    world = [np.array(rows)]
    # The far wall and the two at the sides, as turns that bring "against the wall at z = 0, facing +z" to each.
    for yaw, place, reach in ((0.0, (0, 0, -deep), wide), (np.pi / 2, (-wide, 0, -0.5), deep - 0.7),
                              (-np.pi / 2, (wide, 0, -0.5), deep - 0.7)):  # fmt: skip
        world.append(moved(np.array(_along_wall(dice, reach, high)), turn(yaw), place))
    if dice.chance(0.75):
        where = (dice.uniform(-0.5, 0.5) * wide, 0, dice.uniform(-0.45, 0.0) * deep)
        world.append(moved(np.array(in_the_middle(dice)), turn(dice.uniform(-np.pi, np.pi)), where))
    eye = [dice.uniform(-0.45, 0.45) * wide, dice.uniform(1.15, 1.8), deep * dice.uniform(0.75, 0.92)]
    return photographed(
        dice,
        world,
        sky(mixed_paint(dice)),
        eye=eye,
        view=turn(dice.uniform(-0.6, 0.6) + 0.25 * eye[0] / wide, dice.uniform(-0.4, -0.08), dice.uniform(-0.06, 0.06)),
        focal=dice.uniform(1.3, 1.8),
        elevation=(0.6, 1.2),
        haze=0.0,
    )


def _shell(dice: Dice, wide: float, deep: float, high: float) -> list[Row]:
    wall = tinted_paint(dice, (0.5, 0.47, 0.43), 0.6)
    other = wall if dice.chance(0.6) else mixed_paint(dice)
    minus_x, minus_y, minus_z = (-1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, -1.0)
    return [
        plane((0.0, 0.0, 0.0), (_X, _Y, _Z), tinted_paint(dice, (0.35, 0.25, 0.17), 0.5), ID["floor"]),
        plane((0.0, high, 0.0), (_X, minus_y, minus_z), tinted_paint(dice, (0.65, 0.65, 0.62), 1.5), ID["ceiling"]),
        plane((0.0, 0.0, -deep), (_X, _Z, minus_y), other, ID["wall"]),
        plane((0.0, 0.0, deep), (_X, minus_z, _Y), wall, ID["wall"]),
        plane((-wide, 0.0, 0.0), (_Z, _X, _Y), wall, ID["wall"]),
        plane((wide, 0.0, 0.0), (_Z, minus_x, minus_y), wall, ID["wall"]),
    ]


def _along_wall(dice: Dice, reach: float, high: float) -> list[Row]:
    """Furniture side by side from -reach to reach along x, backs at z = 0, and things on the wall above it."""
    rows: list[Row] = []
    at = -reach + dice.uniform(0.0, 0.5)
    while at < reach - 0.3:
        kind = dice.pick(KINDS)
        piece, width, top = kind(dice, at)
        if at + width > reach:
            break
        rows += piece
        if top < 1.3 and dice.chance(0.6):
            rows.append(on_wall(dice, at + width / 2, min(high - 0.4, top + 0.55), width / 2))
        at += width + dice.uniform(0.05, 0.5)
    return rows or [on_wall(dice, 0.0, 1.5, 0.8)]
