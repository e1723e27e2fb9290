"""Jointed people: capsules for limbs, bent at random."""

from math import cos, sin

import numpy as np

from fedhca2.data.scenes.dice import Dice
from fedhca2.data.scenes.scene import mixed_paint
from fedhca2.data.scenes.solids import Paint, Row, Table, Vector, capsule, ellipsoid, standing

PERSON = 15
HEAD, TORSO, UPPER_ARM, LOWER_ARM, UPPER_LEG, LOWER_LEG = range(1, 7)


def person(dice: Dice) -> Table:
    """A person of any height who stands, walks, waves or sits, in clothes of any colour, feet (or seat) on y = 0."""
    s = dice.uniform(0.85, 1.1)
    girth = s * dice.uniform(1.0, 1.45)
    shirt, trousers, skin = mixed_paint(dice), mixed_paint(dice), _skin(dice)
    sleeves = shirt if dice.chance(0.6) else skin
    shins = trousers if dice.chance(0.6) else skin
    lean = dice.several(-0.25, 0.25, 2)
    neck = _along((0.0, 0.0, 0.0), (lean[0], 1.0, lean[1]), 0.5 * s)
    top = _along(neck, (lean[0] * 1.3, 1.0, lean[1] * 1.3), 0.24 * s)
    wide = 0.19 * girth
    rows = [
        capsule((0.0, 0.05 * s, 0.0), _along(neck, (0.0, -1.0, 0.0), 0.1 * s), 0.145 * girth, shirt, PERSON, TORSO),
        capsule((neck[0] - wide, neck[1] - 0.07 * s, neck[2]), (neck[0] + wide, neck[1] - 0.07 * s, neck[2]),
                0.075 * s, shirt, PERSON, TORSO),
        ellipsoid(top, (0.125 * s, 0.165 * s, 0.14 * s), skin, PERSON, HEAD),
    ]  # fmt: skip
    sitting = dice.chance(0.25)
    for side in (-1.0, 1.0):
        rows += _arm(dice, side, (neck[0] + side * wide, neck[1] - 0.07 * s, neck[2]), s, sleeves, skin)
        rows += _leg(dice, side, (side * 0.1 * girth, 0.0, 0.0), s, sitting, trousers, shins)
    return standing(rows)


def _skin(dice: Dice) -> Paint:
    tone = np.array([0.75, 0.45, 0.32]) * dice.uniform(0.25, 1.1) * np.array(dice.several(0.9, 1.1, 3))
    return Paint((*tone.tolist(), *(tone * 0.85).tolist()), 3, 9.0, dice.uniform(0, 1))


def _arm(dice: Dice, side: float, shoulder: Vector, s: float, sleeve: Paint, skin: Paint) -> list[Row]:
    swing, spread = dice.uniform(-0.7, 1.8), side * dice.uniform(0.1, 1.5)
    elbow = _along(shoulder, _limb(swing, spread), 0.3 * s)
    hand = _along(elbow, _limb(swing + dice.uniform(0, 1.9), spread * dice.uniform(0, 1.2)), 0.36 * s)
    return [
        capsule(shoulder, elbow, 0.068 * s, sleeve, PERSON, UPPER_ARM),
        capsule(elbow, hand, 0.058 * s, skin, PERSON, LOWER_ARM),
    ]


def _leg(dice: Dice, side: float, hip: Vector, s: float, sitting: bool, thigh: Paint, shin: Paint) -> list[Row]:
    swing = dice.uniform(1.1, 1.6) if sitting else dice.uniform(-0.5, 0.7)
    spread = side * dice.uniform(0.02, 0.4)
    knee = _along(hip, _limb(swing, spread), 0.44 * s)
    bent = swing - (dice.uniform(0.9, 1.7) if sitting else dice.uniform(0, 0.7))
    ankle = _along(knee, _limb(bent, spread * 0.5), 0.42 * s)
    toes = _along(ankle, _limb(bent + 1.4, spread + side * 0.2), 0.16 * s)
    return [
        capsule(hip, knee, 0.1 * s, thigh, PERSON, UPPER_LEG),
        capsule(knee, ankle, 0.072 * s, shin, PERSON, LOWER_LEG),
        capsule(ankle, toes, 0.06 * s, shin, PERSON, LOWER_LEG),
    ]


def _limb(swing: float, spread: float) -> Vector:
    """The direction of a limb that hangs down, swung forwards (+z) and spread sideways."""
    return sin(spread), -cos(spread) * cos(swing), cos(spread) * sin(swing)


def _along(start: Vector, direction: Vector, length: float) -> Vector:
    norm = (direction[0] ** 2 + direction[1] ** 2 + direction[2] ** 2) ** 0.5 / length
    return start[0] + direction[0] / norm, start[1] + direction[1] / norm, start[2] + direction[2] / norm
