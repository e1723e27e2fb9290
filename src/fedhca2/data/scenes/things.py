"""Outdoor objects of a few solids each, with random proportions and paint, all between half a metre and four metres.

They have the sizes of toys (a bottle may be as high as a chair), so that every class covers much of a small image.
"""

from collections.abc import Callable

from fedhca2.data.label_spaces import PASCAL_CLASSES
from fedhca2.data.scenes.dice import Dice
from fedhca2.data.scenes.people import person
from fedhca2.data.scenes.scene import mixed_paint, tinted_paint
from fedhca2.data.scenes.solids import Paint, Row, Table, Vector, box, capsule, ellipsoid, standing

_DARK = Paint((0.03, 0.03, 0.035, 0.06, 0.06, 0.07), 0, 1.0, 0.0)


def _glass(dice: Dice) -> Paint:
    return tinted_paint(dice, (0.12, 0.16, 0.2))


def _wheels(x: float, z: float, radius: float) -> list[Row]:
    return [ellipsoid((sx * x, radius, sz * z), (0.09, radius, radius), _DARK) for sx in (-1, 1) for sz in (-1, 1)]


def _legs(x: float, z: float, height: float, thick: float, paint: Paint) -> list[Row]:
    return [box((sx * x, height / 2, sz * z), (thick, height / 2, thick), paint) for sx in (-1, 1) for sz in (-1, 1)]


def aeroplane(dice: Dice) -> Table:
    """A fuselage, a wing, a tail fin and a tail plane."""
    length, span, thick = dice.uniform(1.2, 1.7), dice.uniform(1.2, 1.9), dice.uniform(0.18, 0.28)
    paint, trim = mixed_paint(dice), mixed_paint(dice)
    return standing([
        capsule((0.0, 0.6, -length), (0.0, 0.6, length), thick, paint),
        box((0.0, 0.55, 0.1), (span, 0.04, dice.uniform(0.2, 0.35)), trim),
        box((0.0, 0.95, -length), (0.03, 0.35, 0.2), trim),
        box((0.0, 0.7, -length), (0.5, 0.03, 0.15), trim),
        capsule((0.0, 0.1, length * 0.7), (0.0, 0.5, length * 0.7), 0.07, _DARK),
        capsule((-0.4, 0.1, -0.1), (-0.1, 0.5, -0.1), 0.07, _DARK),
        capsule((0.4, 0.1, -0.1), (0.1, 0.5, -0.1), 0.07, _DARK),
    ])  # fmt: skip


def bottle(dice: Dice) -> Table:
    """A round body, a thin neck and a label."""
    radius, height, neck = dice.uniform(0.16, 0.26), dice.uniform(0.45, 0.8), dice.uniform(0.2, 0.4)
    paint = mixed_paint(dice)
    return standing([
        capsule((0.0, radius, 0.0), (0.0, height, 0.0), radius, paint),
        capsule((0.0, height, 0.0), (0.0, height + radius + neck, 0.0), radius * 0.38, paint),
        ellipsoid((0.0, height * 0.6, 0.0), (radius * 1.04, height * 0.4, radius * 1.04), mixed_paint(dice)),
    ])  # fmt: skip


def bus(dice: Dice) -> Table:
    """A long box on wheels with a band of windows."""
    half = (dice.uniform(0.5, 0.65), dice.uniform(0.55, 0.75), dice.uniform(1.4, 1.9))
    paint, glass = mixed_paint(dice), _glass(dice)
    rows = [
        box((0.0, 0.2 + half[1], 0.0), half, paint),
        box((0.0, 0.25 + half[1] * 1.4, 0.0), (half[0] + 0.02, half[1] * 0.32, half[2] * 0.93), glass),
        box((0.0, 0.25 + half[1] * 1.3, 0.0), (half[0] * 0.85, half[1] * 0.4, half[2] + 0.02), glass),
    ]
    return standing(rows + _wheels(half[0], half[2] * 0.65, dice.uniform(0.2, 0.28)))


def car(dice: Dice) -> Table:
    """A low body, a cabin set on it, and wheels."""
    half = (dice.uniform(0.5, 0.65), dice.uniform(0.2, 0.28), dice.uniform(1.0, 1.4))
    radius, cabin, paint, back = (
        dice.uniform(0.2, 0.28),
        dice.uniform(0.18, 0.28),
        mixed_paint(dice),
        dice.uniform(0, 0.3),
    )
    roof = 0.15 + 2 * half[1]
    rows = [
        box((0.0, 0.15 + half[1], 0.0), half, paint),
        box((0.0, roof + cabin, -back), (half[0] * 0.88, cabin, half[2] * 0.52), _glass(dice)),
        box((0.0, roof + 2 * cabin, -back), (half[0] * 0.9, 0.05, half[2] * 0.5), paint),
    ]
    return standing(rows + _wheels(half[0], half[2] * 0.62, radius))


def chair(dice: Dice) -> Table:
    """A seat on four legs, and a back."""
    wide, seat, back, paint = (
        dice.uniform(0.25, 0.36),
        dice.uniform(0.4, 0.6),
        dice.uniform(0.25, 0.42),
        mixed_paint(dice),
    )
    rows = [
        box((0.0, seat, 0.0), (wide, 0.05, wide), paint),
        box((0.0, seat + back, -wide), (wide, back, 0.045), mixed_paint(dice)),
    ]
    return standing(rows + _legs(wide * 0.86, wide * 0.86, seat, 0.04, paint))


def diningtable(dice: Dice) -> Table:
    """A wide top on four legs."""
    x, z, height, paint = dice.uniform(0.55, 0.9), dice.uniform(0.4, 0.65), dice.uniform(0.6, 0.8), mixed_paint(dice)
    top = box((0.0, height, 0.0), (x, dice.uniform(0.04, 0.08), z), mixed_paint(dice))
    return standing([top, *_legs(x * 0.85, z * 0.85, height, dice.uniform(0.04, 0.07), paint)])


def pottedplant(dice: Dice) -> Table:
    """A pot, a stem and a bush of two or three balls."""
    pot, stem = dice.uniform(0.16, 0.26), dice.uniform(0.4, 0.75)
    leaves = tinted_paint(dice, (0.12, 0.3, 0.08), 0.15)
    rows = [
        box((0.0, pot, 0.0), (pot, pot, pot), mixed_paint(dice)),
        capsule((0.0, pot, 0.0), (0.0, pot + stem, 0.0), 0.04, leaves),
    ]
    for _ in range(2 + dice.below(2)):
        x, y, z = dice.several(-0.18, 0.18, 3)
        wide, tall = dice.several(0.18, 0.34, 2)
        rows.append(ellipsoid((x, 2 * pot + stem * 0.7 + y, z), (wide, tall, wide), leaves))
    return standing(rows)


def _four_legged(
    dice: Dice, body: Vector, leg: float, neck: Vector, head: Vector, paint: Paint, face: Paint
) -> list[Row]:
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


def cow(dice: Dice) -> Table:
    """Large, long-headed, with horns."""
    body = (dice.uniform(0.32, 0.42), dice.uniform(0.34, 0.44), dice.uniform(0.75, 0.95))
    paint = mixed_paint(dice)
    rows = _four_legged(
        dice, body, dice.uniform(0.45, 0.6), (0.0, 0.3, 0.4), (0.15, 0.17, 0.3), paint, mixed_paint(dice)
    )
    x, y, z = rows[2][:3]
    horns = [capsule((x, y + 0.1, z - 0.1), (x + side * 0.24, y + 0.3, z - 0.1), 0.035, _DARK) for side in (-1, 1)]
    return standing(rows + horns)


def dog(dice: Dice) -> Table:
    """Slender, with a raised head and hanging ears."""
    body = (dice.uniform(0.13, 0.19), dice.uniform(0.15, 0.2), dice.uniform(0.38, 0.5))
    paint = mixed_paint(dice)
    neck = (0.0, dice.uniform(0.2, 0.35), dice.uniform(0.1, 0.25))
    rows = _four_legged(dice, body, dice.uniform(0.3, 0.42), neck, (0.11, 0.11, 0.2), paint, paint)
    x, y, z = rows[2][:3]
    ears = [ellipsoid((x + side * 0.12, y, z - 0.08), (0.03, 0.13, 0.06), mixed_paint(dice)) for side in (-1, 1)]
    return standing(rows + ears)


def sheep(dice: Dice) -> Table:
    """A ball of wool on short legs, with a small dark or pale head."""
    round_ = dice.uniform(0.34, 0.44)
    wool = tinted_paint(dice, (0.55, 0.52, 0.45), 0.1)
    body = (round_, round_, round_ * dice.uniform(1.2, 1.45))
    return standing(_four_legged(dice, body, dice.uniform(0.2, 0.32), (0.0, 0.15, 0.3), (0.1, 0.14, 0.2), wool, _DARK))


THINGS: dict[int, Callable[[Dice], Table]] = {
    PASCAL_CLASSES.index(make.__name__): make
    for make in (aeroplane, bottle, bus, car, chair, cow, diningtable, dog, person, pottedplant, sheep)
}
