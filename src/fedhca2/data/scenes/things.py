"""People and outdoor objects of a few solids each, with random proportions and paint, half a metre to four metres long.

They have the sizes of toys (a bottle may be as high as a chair), so that every class covers much of a small image.
"""

from collections.abc import Callable
from math import cos, sin

import numpy as np

from fedhca2.data.scenes.solids import Dice, Paint, Row, Vector, box, capsule, ellipsoid, legs, mix_paint, tint_paint

HEAD, TORSO, UPPER_ARM, LOWER_ARM, UPPER_LEG, LOWER_LEG = range(1, 7)
_GLASS = (0.12, 0.16, 0.2)
_DARK = Paint((0.03, 0.03, 0.035, 0.06, 0.06, 0.07), 0, 1.0, 0.0)


def _wheels(x: float, z: float, radius: float) -> list[Row]:
    return [ellipsoid((sx * x, radius, sz * z), (0.09, radius, radius), _DARK) for sx in (-1, 1) for sz in (-1, 1)]


def aeroplane(dice: Dice) -> list[Row]:
    """A fuselage, a wing, a tail fin and a tail plane."""
    length, span, thick = dice.uniform(1.2, 1.7), dice.uniform(1.2, 1.9), dice.uniform(0.18, 0.28)
    paint, trim = mix_paint(dice), mix_paint(dice)
    return [
        capsule((0.0, 0.6, -length), (0.0, 0.6, length), thick, paint),
        box((0.0, 0.55, 0.1), (span, 0.04, dice.uniform(0.2, 0.35)), trim),
        box((0.0, 0.95, -length), (0.03, 0.35, 0.2), trim),
        box((0.0, 0.7, -length), (0.5, 0.03, 0.15), trim),
        capsule((0.0, 0.1, length * 0.7), (0.0, 0.5, length * 0.7), 0.07, _DARK),
        capsule((-0.4, 0.1, -0.1), (-0.1, 0.5, -0.1), 0.07, _DARK),
        capsule((0.4, 0.1, -0.1), (0.1, 0.5, -0.1), 0.07, _DARK),
    ]


def bottle(dice: Dice) -> list[Row]:
    """A round body, a thin neck and a label."""
    radius, height, neck = dice.uniform(0.16, 0.26), dice.uniform(0.45, 0.8), dice.uniform(0.2, 0.4)
    paint = mix_paint(dice)
    return [
        capsule((0.0, radius, 0.0), (0.0, height, 0.0), radius, paint),
        capsule((0.0, height, 0.0), (0.0, height + radius + neck, 0.0), radius * 0.38, paint),
        ellipsoid((0.0, height * 0.6, 0.0), (radius * 1.04, height * 0.4, radius * 1.04), mix_paint(dice)),
    ]


def bus(dice: Dice) -> list[Row]:
    """A long box on wheels with a band of windows."""
    half = (dice.uniform(0.5, 0.65), dice.uniform(0.55, 0.75), dice.uniform(1.4, 1.9))
    paint, glass = mix_paint(dice), tint_paint(dice, _GLASS)
    rows = [
        box((0.0, 0.2 + half[1], 0.0), half, paint),
        box((0.0, 0.25 + half[1] * 1.4, 0.0), (half[0] + 0.02, half[1] * 0.32, half[2] * 0.93), glass),
        box((0.0, 0.25 + half[1] * 1.3, 0.0), (half[0] * 0.85, half[1] * 0.4, half[2] + 0.02), glass),
    ]
    return rows + _wheels(half[0], half[2] * 0.65, dice.uniform(0.2, 0.28))


def car(dice: Dice) -> list[Row]:
    """A low body, a cabin set on it, and wheels."""
    half = (dice.uniform(0.5, 0.65), dice.uniform(0.2, 0.28), dice.uniform(1.0, 1.4))
    radius, cabin = dice.uniform(0.2, 0.28), dice.uniform(0.18, 0.28)
    paint, back = mix_paint(dice), dice.uniform(0, 0.3)
    roof = 0.15 + 2 * half[1]
    rows = [
        box((0.0, 0.15 + half[1], 0.0), half, paint),
        box((0.0, roof + cabin, -back), (half[0] * 0.88, cabin, half[2] * 0.52), tint_paint(dice, _GLASS)),
        box((0.0, roof + 2 * cabin, -back), (half[0] * 0.9, 0.05, half[2] * 0.5), paint),
    ]
    return rows + _wheels(half[0], half[2] * 0.62, radius)


def chair(dice: Dice) -> list[Row]:
    """A seat on four legs, and a back."""
    wide, seat, back = dice.uniform(0.25, 0.36), dice.uniform(0.4, 0.6), dice.uniform(0.25, 0.42)
    paint = mix_paint(dice)
    rows = [
        box((0.0, seat, 0.0), (wide, 0.05, wide), paint),
        box((0.0, seat + back, -wide), (wide, back, 0.045), mix_paint(dice)),
    ]
    return rows + legs(wide * 0.86, wide * 0.86, seat, 0.04, paint)


def diningtable(dice: Dice) -> list[Row]:
    """A wide top on four legs."""
    x, z, height, paint = dice.uniform(0.55, 0.9), dice.uniform(0.4, 0.65), dice.uniform(0.6, 0.8), mix_paint(dice)
    top = box((0.0, height, 0.0), (x, dice.uniform(0.04, 0.08), z), mix_paint(dice))
    return [top, *legs(x * 0.85, z * 0.85, height, dice.uniform(0.04, 0.07), paint)]


def pottedplant(dice: Dice) -> list[Row]:
    """A pot, a stem and a bush of two or three balls."""
    pot, stem = dice.uniform(0.16, 0.26), dice.uniform(0.4, 0.75)
    leaves = tint_paint(dice, (0.12, 0.3, 0.08), 0.15)
    rows = [
        box((0.0, pot, 0.0), (pot, pot, pot), mix_paint(dice)),
        capsule((0.0, pot, 0.0), (0.0, pot + stem, 0.0), 0.04, leaves),
    ]
    for _ in range(2 + dice.below(2)):
        x, y, z = dice.several(-0.18, 0.18, 3)
        wide, tall = dice.several(0.18, 0.34, 2)
        rows.append(ellipsoid((x, 2 * pot + stem * 0.7 + y, z), (wide, tall, wide), leaves))
    return rows


def _animal(dice: Dice, body: Vector, leg: float, neck: Vector, head: Vector, paint: Paint, face: Paint) -> list[Row]:
    """A body along z on four legs, a head at `neck` from its front end."""
    wide, tall, long = body
    back = leg + tall * 0.8
    front: Vector = (0.0, back, long * 0.8)
    at: Vector = (dice.uniform(-0.1, 0.1), back + neck[1], long * 0.8 + neck[2])
    rows = [
        ellipsoid((0.0, back, 0.0), body, paint),
        capsule(front, at, min(wide, tall) * 0.45, paint),
        ellipsoid(at, head, face),
        capsule((0.0, back, -long * 0.9), (0.0, back + dice.uniform(-0.3, 0.25), -long * 1.2), 0.035, paint),
    ]
    for sx in (-1, 1):
        for sz in (-1, 1):
            foot = (sx * wide * 0.6, 0.0, sz * long * 0.6 + dice.uniform(-0.15, 0.15))
            rows.append(capsule((sx * wide * 0.55, back, sz * long * 0.6), foot, wide * 0.22, paint))
    return rows


def cow(dice: Dice) -> list[Row]:
    """Large, long-headed, with horns."""
    body = (dice.uniform(0.32, 0.42), dice.uniform(0.34, 0.44), dice.uniform(0.75, 0.95))
    paint = mix_paint(dice)
    rows = _animal(dice, body, dice.uniform(0.45, 0.6), (0.0, 0.3, 0.4), (0.15, 0.17, 0.3), paint, mix_paint(dice))
    x, y, z = rows[2][:3]
    horns = [capsule((x, y + 0.1, z - 0.1), (x + side * 0.24, y + 0.3, z - 0.1), 0.035, _DARK) for side in (-1, 1)]
    return rows + horns


def dog(dice: Dice) -> list[Row]:
    """Slender, with a raised head and hanging ears."""
    body = (dice.uniform(0.13, 0.19), dice.uniform(0.15, 0.2), dice.uniform(0.38, 0.5))
    paint = mix_paint(dice)
    neck = (0.0, dice.uniform(0.2, 0.35), dice.uniform(0.1, 0.25))
    rows = _animal(dice, body, dice.uniform(0.3, 0.42), neck, (0.11, 0.11, 0.2), paint, paint)
    x, y, z = rows[2][:3]
    ears = [ellipsoid((x + side * 0.12, y, z - 0.08), (0.03, 0.13, 0.06), mix_paint(dice)) for side in (-1, 1)]
    return rows + ears


def sheep(dice: Dice) -> list[Row]:
    """A ball of wool on short legs, with a small dark or pale head."""
    round_ = dice.uniform(0.34, 0.44)
    wool = tint_paint(dice, (0.55, 0.52, 0.45), 0.1)
    body = (round_, round_, round_ * dice.uniform(1.2, 1.45))
    return _animal(dice, body, dice.uniform(0.2, 0.32), (0.0, 0.15, 0.3), (0.1, 0.14, 0.2), wool, _DARK)


def person(dice: Dice) -> list[Row]:
    """A person of any height who stands, walks, waves or sits, in clothes of any colour, feet (or seat) on y = 0."""
    s = dice.uniform(0.85, 1.1)
    girth = s * dice.uniform(1.0, 1.45)
    shirt, trousers = mix_paint(dice), mix_paint(dice)
    tone = np.array([0.75, 0.45, 0.32]) * dice.uniform(0.25, 1.1) * np.array(dice.several(0.9, 1.1, 3))
    skin = Paint((*tone.tolist(), *(tone * 0.85).tolist()), 3, 9.0, dice.uniform(0, 1))
    sleeves = shirt if dice.chance(0.6) else skin
    shins = trousers if dice.chance(0.6) else skin
    lean = dice.several(-0.25, 0.25, 2)
    neck = _along((0.0, 0.0, 0.0), (lean[0], 1.0, lean[1]), 0.5 * s)
    top = _along(neck, (lean[0] * 1.3, 1.0, lean[1] * 1.3), 0.24 * s)
    wide = 0.19 * girth
    left, right = ((neck[0] + side * wide, neck[1] - 0.07 * s, neck[2]) for side in (-1.0, 1.0))
    rows = [
        capsule((0.0, 0.05 * s, 0.0), _along(neck, (0.0, -1.0, 0.0), 0.1 * s), 0.145 * girth, shirt, part=TORSO),
        capsule(left, right, 0.075 * s, shirt, part=TORSO),
        ellipsoid(top, (0.125 * s, 0.165 * s, 0.14 * s), skin, part=HEAD),
    ]
    sitting = dice.chance(0.25)
    for side, shoulder in ((-1.0, left), (1.0, right)):
        rows += _arm(dice, side, shoulder, s, sleeves, skin)
        rows += _leg(dice, side, (side * 0.1 * girth, 0.0, 0.0), s, sitting, trousers, shins)
    return rows


def _arm(dice: Dice, side: float, shoulder: Vector, s: float, sleeve: Paint, skin: Paint) -> list[Row]:
    swing, spread = dice.uniform(-0.7, 1.8), side * dice.uniform(0.1, 1.5)
    elbow = _along(shoulder, _limb(swing, spread), 0.3 * s)
    hand = _along(elbow, _limb(swing + dice.uniform(0, 1.9), spread * dice.uniform(0, 1.2)), 0.36 * s)
    return [
        capsule(shoulder, elbow, 0.068 * s, sleeve, part=UPPER_ARM),
        capsule(elbow, hand, 0.058 * s, skin, part=LOWER_ARM),
    ]


def _leg(dice: Dice, side: float, hip: Vector, s: float, sitting: bool, thigh: Paint, shin: Paint) -> list[Row]:
    swing = dice.uniform(1.1, 1.6) if sitting else dice.uniform(-0.5, 0.7)
    spread = side * dice.uniform(0.02, 0.4)
    knee = _along(hip, _limb(swing, spread), 0.44 * s)
    bent = swing - (dice.uniform(0.9, 1.7) if sitting else dice.uniform(0, 0.7))
    ankle = _along(knee, _limb(bent, spread * 0.5), 0.42 * s)
    toes = _along(ankle, _limb(bent + 1.4, spread + side * 0.2), 0.16 * s)
    return [
        capsule(hip, knee, 0.1 * s, thigh, part=UPPER_LEG),
        capsule(knee, ankle, 0.072 * s, shin, part=LOWER_LEG),
        capsule(ankle, toes, 0.06 * s, shin, part=LOWER_LEG),
    ]


def _limb(swing: float, spread: float) -> Vector:
    """The direction of a limb that hangs down, swung forwards (+z) and spread sideways."""
    return sin(spread), -cos(spread) * cos(swing), cos(spread) * sin(swing)


def _along(start: Vector, direction: Vector, length: float) -> Vector:
    norm = (direction[0] ** 2 + direction[1] ** 2 + direction[2] ** 2) ** 0.5 / length
    return start[0] + direction[0] / norm, start[1] + direction[1] / norm, start[2] + direction[2] / norm


THINGS: dict[str, Callable[[Dice], list[Row]]] = {
    make.__name__: make
    for make in (aeroplane, bottle, bus, car, chair, cow, diningtable, dog, person, pottedplant, sheep)
}
