"""Drawing scenes: rooms full of furniture, and streets with one to three objects, among them people."""

from math import atan2

import numpy as np

from fedhca2.data.label_spaces import CONTEXT_IDS, NYUD_CLASSES
from fedhca2.data.scenes.solids import (
    UPRIGHT,
    Dice,
    Paint,
    Row,
    Scene,
    Solid,
    box,
    capsule,
    ellipsoid,
    legs,
    mix_paint,
    move,
    photograph,
    plane,
    rotation,
    size,
    sky,
    stand,
    tint_paint,
)
from fedhca2.data.scenes.things import THINGS

# A piece of furniture from x = `at` on, its back against the wall z = 0; its width, and the height of its top.
Piece = tuple[list[Row], float, float]
ID = {name: number for number, name in enumerate(NYUD_CLASSES)}
GROUNDS = {
    "grass": (0.16, 0.28, 0.08),
    "ground": (0.32, 0.24, 0.15),
    "road": (0.2, 0.2, 0.21),
    "sidewalk": (0.42, 0.4, 0.37),
    "snow": (0.75, 0.78, 0.8),
}


def draw_room(dice: Dice) -> Scene:
    """Draw a room of at most 5 by 5.5 by 3 metres, seen from inside; nothing in it is 10 metres away."""
    wide, deep, high = dice.uniform(1.7, 2.5), dice.uniform(1.9, 2.75), dice.uniform(2.3, 3.0)
    world = _shell(dice, wide, deep, high)
    # The far wall and the two at the sides, as turns that bring "against the wall at z = 0, facing +z" to each.
    for yaw, position, reach in ((0.0, (0, 0, -deep), wide), (np.pi / 2, (-wide, 0, -0.5), deep - 0.7),
                              (-np.pi / 2, (wide, 0, -0.5), deep - 0.7)):  # fmt: skip
        world.extend(move(_furnish_wall(dice, reach, high), rotation(yaw), position))
    if dice.chance(0.75):
        where = (dice.uniform(-0.5, 0.5) * wide, 0, dice.uniform(-0.45, 0.0) * deep)
        world.extend(move(_furnish_middle(dice), rotation(dice.uniform(-np.pi, np.pi)), where))
    eye = [dice.uniform(-0.45, 0.45) * wide, dice.uniform(1.15, 1.8), deep * dice.uniform(0.75, 0.92)]
    heaven = sky(mix_paint(dice))
    yaw, pitch = dice.uniform(-0.6, 0.6) + 0.25 * eye[0] / wide, dice.uniform(-0.4, -0.08)
    return photograph(
        dice,
        world,
        heaven,
        eye=eye,
        view=rotation(yaw, pitch, dice.uniform(-0.06, 0.06)),
        focal=dice.uniform(1.3, 1.8),
        elevation=(0.6, 1.2),
        haze=0.0,
    )


def _shell(dice: Dice, wide: float, deep: float, high: float) -> list[Row]:
    wall = tint_paint(dice, (0.5, 0.47, 0.43), 0.6)
    other = wall if dice.chance(0.6) else mix_paint(dice)
    x, y, z = UPRIGHT
    minus_x, minus_y, minus_z = (-1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (0.0, 0.0, -1.0)
    return [
        plane((0.0, 0.0, 0.0), UPRIGHT, tint_paint(dice, (0.35, 0.25, 0.17), 0.5), ID["floor"]),
        plane((0.0, high, 0.0), (x, minus_y, minus_z), tint_paint(dice, (0.65, 0.65, 0.62), 1.5), ID["ceiling"]),
        plane((0.0, 0.0, -deep), (x, z, minus_y), other, ID["wall"]),
        plane((0.0, 0.0, deep), (x, minus_z, y), wall, ID["wall"]),
        plane((-wide, 0.0, 0.0), (z, x, y), wall, ID["wall"]),
        plane((wide, 0.0, 0.0), (z, minus_x, minus_y), wall, ID["wall"]),
    ]


def _furnish_wall(dice: Dice, reach: float, high: float) -> list[Row]:
    """Furniture side by side from -reach to reach along x, backs at z = 0, and things on the wall above it."""
    kinds = (_cabinet, _bed, _sofa, _bookshelf, _door, _curtain)
    rows: list[Row] = []
    at = -reach + dice.uniform(0.0, 0.5)
    while at < reach - 0.3:
        piece, width, top = dice.pick(kinds)(dice, at)
        if at + width > reach:
            break
        rows += piece
        if top < 1.3 and dice.chance(0.6):
            rows.append(_hang_on_wall(dice, at + width / 2, min(high - 0.4, top + 0.55), width / 2))
        at += width + dice.uniform(0.05, 0.5)
    return rows or [_hang_on_wall(dice, 0.0, 1.5, 0.8)]


def _block(dice: Dice, name: str, at: float, width: float, depth: float, height: float) -> Row:
    half = (width / 2, height / 2, depth / 2)
    return box((at + width / 2, height / 2, depth / 2), half, mix_paint(dice), ID[name])


def _cabinet(dice: Dice, at: float) -> Piece:
    width, depth, height = dice.uniform(0.6, 1.3), dice.uniform(0.35, 0.6), dice.uniform(0.7, 1.2)
    rows = [_block(dice, "cabinet", at, width, depth, height)]
    rows.append(box((at + width / 2, height / 2, depth), (0.015, height * 0.4, 0.02), mix_paint(dice), ID["cabinet"]))
    if dice.chance(0.4):
        x, z, shade = at + width * dice.uniform(0.25, 0.75), depth / 2, dice.uniform(0.13, 0.2)
        rows.append(capsule((x, height, z), (x, height + 0.3, z), 0.03, mix_paint(dice), ID["lamp"]))
        rows.append(ellipsoid((x, height + 0.35, z), (shade, shade * 0.8, shade), mix_paint(dice), ID["lamp"]))
    elif dice.chance(0.5):
        wide, tall = dice.uniform(0.12, 0.25), dice.uniform(0.1, 0.2)
        rows.append(box((at + width / 2, height + tall, depth / 2), (wide, tall, 0.12), mix_paint(dice), ID["box"]))
    return rows, width, height + 0.4


def _bed(dice: Dice, at: float) -> Piece:
    width, length, height = dice.uniform(1.0, 1.6), dice.uniform(1.5, 1.9), dice.uniform(0.4, 0.6)
    rows = [_block(dice, "bed", at, width, length, height), _block(dice, "bed", at, width, 0.08, height + 0.45)]
    for x in (0.28, 0.72):
        soft = (width * 0.19, 0.11, 0.18)
        rows.append(ellipsoid((at + width * x, height + 0.05, 0.32), soft, mix_paint(dice), ID["pillow"]))
    return rows, width, height + 0.45


def _sofa(dice: Dice, at: float) -> Piece:
    width, depth, seat = dice.uniform(1.2, 1.8), dice.uniform(0.7, 0.9), dice.uniform(0.36, 0.46)
    paint = mix_paint(dice)
    middle, arm = at + width / 2, 0.1
    rows = [
        box((middle, seat / 2, depth / 2), (width / 2, seat / 2, depth / 2), paint, ID["sofa"]),
        box((middle, seat, 0.14), (width / 2, 0.42, 0.14), paint, ID["sofa"]),
    ]
    for x in (at + arm, at + width - arm):
        rows.append(capsule((x, seat + 0.1, 0.1), (x, seat + 0.1, depth), arm, paint, ID["sofa"]))
    if dice.chance(0.6):
        centre = (middle + dice.uniform(-0.4, 0.4), seat + 0.16, 0.37)
        rows.append(ellipsoid(centre, (0.2, 0.18, 0.09), mix_paint(dice), ID["pillow"]))
    return rows, width, seat + 0.45


def _bookshelf(dice: Dice, at: float) -> Piece:
    width, depth, height, shelves = dice.uniform(0.6, 1.1), dice.uniform(0.28, 0.38), dice.uniform(1.4, 2.0), 3
    rows = [_block(dice, "bookshelf", at, width, depth, height)]
    for i in range(shelves):
        half = (width * 0.42 * dice.uniform(0.5, 1.0), height / shelves * 0.34, 0.02)
        y = height * (i + 0.5) / shelves
        rows.append(box((at + width / 2, y, depth), half, mix_paint(dice, 2)._replace(frequency=14.0), ID["books"]))
    return rows, width, height


def _door(dice: Dice, at: float) -> Piece:
    width, height = dice.uniform(0.75, 0.95), dice.uniform(1.9, 2.1)
    return [_block(dice, "door", at, width, 0.05, height)], width, height


def _curtain(dice: Dice, at: float) -> Piece:
    width, height, paint = dice.uniform(0.5, 0.9), dice.uniform(1.8, 2.2), mix_paint(dice, 2)
    folds = [at + width * (i + 0.5) / 3 for i in range(3)]
    rows = [capsule((x, 0.15, 0.1), (x, height, 0.1), width / 5, paint, ID["curtain"]) for x in folds]
    return rows, width, height


def _table(dice: Dice) -> list[Row]:
    x, z, height, paint = dice.uniform(0.35, 0.6), dice.uniform(0.3, 0.5), dice.uniform(0.45, 0.75), mix_paint(dice)
    rows = [box((0.0, height, 0.0), (x, 0.03, z), mix_paint(dice), ID["table"])]
    rows += legs(0.9 * x, 0.9 * z, height, 0.035, paint, ID["table"])
    if dice.chance(0.5):
        tall = dice.uniform(0.08, 0.16)
        rows.append(box((0.0, height + tall, 0.0), (0.14, tall, 0.1), mix_paint(dice), ID["box"]))
    return rows


def _chair(dice: Dice) -> list[Row]:
    wide, seat, back = dice.uniform(0.2, 0.26), dice.uniform(0.4, 0.5), dice.uniform(0.22, 0.32)
    paint = mix_paint(dice)
    rows = [
        box((0.0, seat, 0.0), (wide, 0.04, wide), paint, ID["chair"]),
        box((0.0, seat + back, -wide), (wide, back, 0.03), mix_paint(dice), ID["chair"]),
    ]
    return rows + legs(0.85 * wide, 0.85 * wide, seat, 0.028, paint, ID["chair"])


def _furnish_middle(dice: Dice) -> list[Row]:
    """A table, a chair, or a table with a chair next to it; sometimes a mat below."""
    choice = dice.below(3)
    rows = _chair(dice) if choice == 0 else _table(dice)
    if choice == 2:
        rows.extend(move(_chair(dice), rotation(dice.uniform(-0.5, 0.5)), (0.0, 0.0, -0.75)))
    if dice.chance(0.5):
        half = (dice.uniform(0.7, 1.1), 0.01, dice.uniform(0.6, 0.9))
        rows.append(box((0.0, 0.0, 0.0), half, mix_paint(dice), ID["floor mat"]))
    return rows


def _hang_on_wall(dice: Dice, x: float, y: float, room: float) -> Row:
    """A picture, window, television or mirror near (x, y) on the wall z = 0, no wider than 2 room."""
    name = dice.pick(("picture", "picture", "window", "window", "television", "mirror"))
    half = (min(room, dice.uniform(0.3, 0.7)), dice.uniform(0.25, 0.4), dice.uniform(0.01, 0.04))
    bright = tint_paint(dice, (0.75, 0.82, 0.9)) if name == "window" else mix_paint(dice)
    return box((x, y, 0.0), half, bright, ID[name])


def draw_street(dice: Dice) -> Scene:
    """Draw an outdoor scene; seven in ten show a person."""
    focal = dice.uniform(1.6, 2.4)
    kinds = _cast_list(dice)
    things = [stand(THINGS[kind](dice)) for kind in kinds]
    extent = size(things[0])
    distance = max(extent[1], 0.7 * max(extent[0], extent[2])) * focal / (2 * dice.uniform(0.85, 1.35))
    world: list[Row] = []
    occupied: list[tuple[float, float, float]] = []  # x and z on the ground, and a radius around them
    for number, (kind, thing) in enumerate(zip(kinds, things, strict=True), 1):
        radius = float(np.hypot(*size(thing)[::2]) / 2)
        thing[:, [Solid.CODE, Solid.OBJECT]] = CONTEXT_IDS[kind], number
        for _ in range(10):
            if number == 1:
                x, z = dice.uniform(-0.35, 0.35) * distance / focal, -distance - extent[2] / 2
            else:  # in view, not much nearer than the main object
                far = distance * dice.uniform(0.9, 1.6) + radius
                x, z = dice.uniform(-0.9, 0.9) * far / focal, -far
            if all(np.hypot(x - ox, z - oz) > 0.85 * (radius + other) for ox, oz, other in occupied):
                occupied.append((x, z, radius))
                world.extend(move(thing, rotation(dice.uniform(-np.pi, np.pi)), (x, 0, z)))
                break
    height = dice.uniform(0.5, 1.15) * max(extent[1], 1.0)
    tilt = atan2(extent[1] * dice.uniform(0.35, 0.6) - height, distance + extent[2] / 2)
    world += _surroundings(dice, distance)
    blue = np.array([0.35, 0.5, 0.75]) * dice.uniform(0.5, 1.2)
    pale = np.array([0.75, 0.75, 0.75]) * dice.uniform(0.7, 1.2) * np.array(dice.several(0.85, 1.1, 3))
    clouds = Paint((*blue.tolist(), *pale.tolist()), 3, dice.uniform(1.5, 5.0), dice.uniform(0, 9))
    return photograph(
        dice,
        world,
        sky(clouds, CONTEXT_IDS["sky"]),
        eye=[0.0, height, 0.0],
        view=rotation(0.0, tilt, dice.uniform(-0.06, 0.06)),
        focal=focal,
        elevation=(0.45, 1.25),
        haze=dice.uniform(0.0, 0.02),
    )


def _cast_list(dice: Dice) -> list[str]:
    """The classes of the scene's objects, the main one first."""
    others = [kind for kind in THINGS if kind != "person"]
    kinds = [dice.pick(others) for _ in range(1 + dice.below(2))]
    if dice.chance(0.84):
        kinds = ["person"] if dice.chance(0.2) else ["person", *kinds]
        if dice.chance(0.25):
            kinds = [*kinds[:2], "person"]
        first = dice.below(len(kinds)) if dice.chance(0.4) else 0
        kinds = [kinds[first], *kinds[:first], *kinds[first + 1 :]]
    return kinds


def _surroundings(dice: Dice, distance: float) -> list[Row]:
    first = dice.pick(list(GROUNDS))
    second = dice.pick([name for name in GROUNDS if name != first])
    rows = [plane((0.0, 0.0, 0.0), UPRIGHT, tint_paint(dice, GROUNDS[first], 0.7), CONTEXT_IDS[first])]
    if dice.chance(0.5):
        half = (60.0, 0.01, dice.uniform(0.8, 2.5))
        strip = box((0.0, 0.0, 0.0), half, tint_paint(dice, GROUNDS[second], 0.7), CONTEXT_IDS[second])
        turn = rotation(dice.uniform(-1.6, 1.6))
        rows.extend(move([strip], turn, (dice.uniform(-3, 3), 0, -distance * dice.uniform(1, 2))))
    behind = 2.5 * distance + 4.0
    if dice.chance(0.5):
        half = (dice.uniform(20, 50), dice.uniform(6, 14), 15.0)
        paint = tint_paint(dice, (0.25, 0.27, 0.25), 8.0)
        rows.append(ellipsoid((dice.uniform(-30, 30), 0.0, -70.0), half, paint, CONTEXT_IDS["mountain"]))
    if dice.chance(0.5):
        half = (dice.uniform(2, 5), dice.uniform(2, 6), 2.0)
        paint = mix_paint(dice)._replace(frequency=1.0)
        building = box((0.0, half[1], 0.0), half, paint, CONTEXT_IDS["building"])
        position = (dice.uniform(-0.6, 0.6) * behind, 0, -behind - half[0])
        rows.extend(move([building], rotation(dice.uniform(-0.7, 0.7)), position))
    if dice.chance(0.3):
        half = (9.0, dice.uniform(0.4, 0.6), 0.05)
        fence = box((0.0, 0.5, 0.0), half, mix_paint(dice, 2), CONTEXT_IDS["fence"])
        rows.extend(move([fence], rotation(dice.uniform(-0.4, 0.4)), (dice.uniform(-4, 4), 0, -behind + 1)))
    for _ in range(dice.below(3)):
        rows += _tree(dice, dice.uniform(-0.7, 0.7) * behind, -behind * dice.uniform(0.9, 1.3))
    return rows


def _tree(dice: Dice, x: float, z: float) -> list[Row]:
    stem, crown, code = dice.uniform(1.2, 2.2), dice.uniform(0.7, 1.4), CONTEXT_IDS["tree"]
    leaves = tint_paint(dice, (0.13, 0.26, 0.08), 0.4)
    thick, bark = dice.uniform(0.1, 0.2), tint_paint(dice, (0.2, 0.14, 0.08), 0.3)
    low = (crown, crown * dice.uniform(0.8, 1.3), crown)
    high = (crown * 0.7, crown * 0.8, crown * 0.7)
    return [
        capsule((x, 0.0, z), (x, stem, z), thick, bark, code),
        ellipsoid((x, stem + crown * 0.6, z), low, leaves, code),
        ellipsoid((x + dice.uniform(-0.6, 0.6), stem + crown, z), high, leaves, code),
    ]
