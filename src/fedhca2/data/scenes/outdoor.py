"""Drawing an outdoor scene: one to three objects, including people, in front of buildings, trees and hills."""

from math import atan2

import numpy as np

from fedhca2.data.label_spaces import CONTEXT_IDS, PASCAL_CLASSES, PERSON
from fedhca2.data.scenes.solids import (
    UPRIGHT,
    Dice,
    Paint,
    Row,
    Solid,
    Table,
    box,
    capsule,
    ellipsoid,
    mixed_paint,
    moved,
    plane,
    size,
    sky,
    tinted_paint,
    turn,
)
from fedhca2.data.scenes.things import THINGS
from fedhca2.data.scenes.world import Scene, photographed

_GROUNDS = {
    "grass": (0.16, 0.28, 0.08),
    "ground": (0.32, 0.24, 0.15),
    "road": (0.2, 0.2, 0.21),
    "sidewalk": (0.42, 0.4, 0.37),
    "snow": (0.75, 0.78, 0.8),
}


def draw_street(dice: Dice) -> Scene:
    """Draw an outdoor scene; seven in ten show a person."""
    focal = dice.uniform(1.6, 2.4)
    kinds = _cast_list(dice)
    things = [THINGS[kind](dice) for kind in kinds]
    extents = [size(thing) for thing in things]
    extent = extents[0]
    distance = max(extent[1], 0.7 * max(extent[0], extent[2])) * focal / (2 * dice.uniform(0.85, 1.35))
    spots = [(dice.uniform(-0.35, 0.35) * distance / focal, -distance - extent[2] / 2)]
    world = [_named(moved(things[0], turn(dice.uniform(-np.pi, np.pi)), (spots[0][0], 0, spots[0][1])), kinds[0], 1)]
    taken = [(*spots[0], _radius(extent))]
    others = list(zip(kinds, things, map(_radius, extents), strict=True))[1:]
    for number, (kind, thing, radius) in enumerate(others, 2):
        spot = _free_spot(dice, taken, radius, distance, focal)
        if spot is not None:
            taken.append((*spot, radius))
            world.append(_named(moved(thing, turn(dice.uniform(-np.pi, np.pi)), (spot[0], 0, spot[1])), kind, number))
    height = dice.uniform(0.5, 1.15) * max(extent[1], 1.0)
    tilt = atan2(extent[1] * dice.uniform(0.35, 0.6) - height, distance + extent[2] / 2)
    return photographed(
        dice,
        [*world, *_surroundings(dice, distance)],
        _heaven(dice),
        eye=[0.0, height, 0.0],
        view=turn(0.0, tilt, dice.uniform(-0.06, 0.06)),
        focal=focal,
        elevation=(0.45, 1.25),
        haze=dice.uniform(0.0, 0.02),
    )


def _cast_list(dice: Dice) -> list[int]:
    """The classes of the scene's objects, the main one first."""
    others = [kind for kind in THINGS if kind != PERSON]
    kinds = [dice.pick(others) for _ in range(1 + dice.below(2))]
    if dice.chance(0.84):
        kinds = [PERSON] if dice.chance(0.2) else [PERSON, *kinds]
        if dice.chance(0.25):
            kinds = [*kinds[:2], PERSON]
        first = dice.below(len(kinds)) if dice.chance(0.4) else 0
        kinds = [kinds[first], *kinds[:first], *kinds[first + 1 :]]
    return kinds


def _radius(extent: Table) -> float:
    return float(np.hypot(extent[0], extent[2]) / 2)


def _free_spot(
    dice: Dice, taken: list[tuple[float, float, float]], radius: float, distance: float, focal: float
) -> tuple[float, float] | None:
    """A place in view, not much nearer than the main object, that nothing else occupies; None after ten tries."""
    for _ in range(10):
        far = distance * dice.uniform(0.9, 1.6) + radius
        x = dice.uniform(-0.9, 0.9) * far / focal
        if all(np.hypot(x - ox, -far - oz) > 0.85 * (radius + other) for ox, oz, other in taken):
            return x, -far
    return None


def _named(table: Table, semseg: int, number: int) -> Table:
    table[:, Solid.SEMSEG], table[:, Solid.CONTEXT], table[:, Solid.OBJECT] = (
        semseg,
        CONTEXT_IDS[PASCAL_CLASSES[semseg]],
        number,
    )
    return table


def _scenery(name: str, *rows: Row) -> Table:
    table = np.array(rows)
    table[:, Solid.CONTEXT] = CONTEXT_IDS[name]
    return table


def _heaven(dice: Dice) -> Row:
    blue = np.array([0.35, 0.5, 0.75]) * dice.uniform(0.5, 1.2)
    pale = np.array([0.75, 0.75, 0.75]) * dice.uniform(0.7, 1.2) * np.array(dice.several(0.85, 1.1, 3))
    paint = Paint((*blue.tolist(), *pale.tolist()), 3, dice.uniform(1.5, 5.0), dice.uniform(0, 9))
    row: Row = _scenery("sky", sky(paint))[0].tolist()
    return row


def _surroundings(dice: Dice, distance: float) -> list[Table]:
    first = dice.pick(list(_GROUNDS))
    second = dice.pick([name for name in _GROUNDS if name != first])
    around = [_scenery(first, plane((0.0, 0.0, 0.0), UPRIGHT, tinted_paint(dice, _GROUNDS[first], 0.7)))]
    if dice.chance(0.5):
        wide = dice.uniform(0.8, 2.5)
        strip = _scenery(second, box((0.0, 0.0, 0.0), (60.0, 0.01, wide), tinted_paint(dice, _GROUNDS[second], 0.7)))
        around.append(
            moved(strip, turn(dice.uniform(-1.6, 1.6)), (dice.uniform(-3, 3), 0, -distance * dice.uniform(1, 2)))
        )
    behind = 2.5 * distance + 4.0
    if dice.chance(0.5):
        hill = (dice.uniform(20, 50), dice.uniform(6, 14), 15.0)
        paint = tinted_paint(dice, (0.25, 0.27, 0.25), 8.0)
        around.append(_scenery("mountain", ellipsoid((dice.uniform(-30, 30), 0.0, -70.0), hill, paint)))
    if dice.chance(0.5):
        wall = (dice.uniform(2, 5), dice.uniform(2, 6), 2.0)
        building = _scenery("building", box((0.0, wall[1], 0.0), wall, mixed_paint(dice)._replace(frequency=1.0)))
        place = (dice.uniform(-0.6, 0.6) * behind, 0, -behind - wall[0])
        around.append(moved(building, turn(dice.uniform(-0.7, 0.7)), place))
    if dice.chance(0.3):
        fence = _scenery("fence", box((0.0, 0.5, 0.0), (9.0, dice.uniform(0.4, 0.6), 0.05), mixed_paint(dice, 2)))
        around.append(moved(fence, turn(dice.uniform(-0.4, 0.4)), (dice.uniform(-4, 4), 0, -behind + 1)))
    for _ in range(dice.below(3)):
        around.append(_tree(dice, dice.uniform(-0.7, 0.7) * behind, -behind * dice.uniform(0.9, 1.3)))
    return around


def _tree(dice: Dice, x: float, z: float) -> Table:
    stem, crown = dice.uniform(1.2, 2.2), dice.uniform(0.7, 1.4)
    leaves = tinted_paint(dice, (0.13, 0.26, 0.08), 0.4)
    return _scenery(
        "tree",
        capsule((x, 0.0, z), (x, stem, z), dice.uniform(0.1, 0.2), tinted_paint(dice, (0.2, 0.14, 0.08), 0.3)),
        ellipsoid((x, stem + crown * 0.6, z), (crown, crown * dice.uniform(0.8, 1.3), crown), leaves),
        ellipsoid((x + dice.uniform(-0.6, 0.6), stem + crown, z), (crown * 0.7, crown * 0.8, crown * 0.7), leaves),
    )
