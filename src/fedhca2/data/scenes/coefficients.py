"""What the ray caster needs to know of each kind of solid, precomputed per scene so that a ray takes few steps.

All arrays are float32 and component first: [3, ..., p] for p solids of a kind, [3, ..., k, 1] as tensors. `axes` are
transposed, so that `dot(axes, ray)` is the ray in the solid's own axes. The third axis of a light frame points to the
light.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes.solids import AXES, CENTRE, HALF

Array = NDArray[np.float32]


class Plane(NamedTuple):
    """Its normal, and the distance of the eye below it."""

    normal: Tensor
    height: Tensor


class Box(NamedTuple):
    """Axes, centre and half sizes along them; `to_light` is the same along the light, in units of its slope."""

    axes: Tensor
    middle: Tensor
    half: Tensor
    to_light: Tensor
    light_middle: Tensor
    light_half: Tensor


class Ellipsoid(NamedTuple):
    r"""The map to the unit sphere, $-d \cdot o$ as a map of rays, $1 - |o|^2$; the same terms for rays to the light."""

    axes: Tensor
    centre: Tensor
    gap: Tensor
    middle: Tensor
    light_approach: Tensor
    light_offset: Tensor
    light_squared: Tensor


class Capsule(NamedTuple):
    """Axis, centre, and products of them; centre and half axis in the light's frame."""

    axis: Tensor
    centre: Tensor
    along: Tensor
    gap: Tensor
    squared: Tensor
    half: Tensor
    light_centre: Tensor
    light_arm: Tensor
    light_share: Tensor
    radius_squared: Tensor


Shape = Plane | Box | Ellipsoid | Capsule


def inner(a: Array, b: Array) -> Array:
    """The inner product over the leading three components."""
    product: Array = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def plane(solids: Array, light: Array) -> tuple[Array, ...]:
    """The fields of Plane."""
    normal = solids[AXES][3:6]
    return normal, inner(normal, solids[CENTRE])


def box(solids: Array, light: Array) -> tuple[Array, ...]:
    """The fields of Box."""
    axes, half = _axes(solids), solids[HALF]
    middle = inner(axes, solids[CENTRE][:, None])
    slope = inner(axes, light[2][:, None])
    return axes, middle, half, -axes / slope, middle / slope, np.abs(half / slope)


def ellipsoid(solids: Array, light: Array) -> tuple[Array, ...]:
    """The fields of Ellipsoid."""
    axes = _axes(solids) / solids[HALF]
    middle = inner(axes, solids[CENTRE][:, None])
    direction = inner(axes, light[2][:, None])
    towards = inner(axes.swapaxes(0, 1), direction[:, None])
    return (
        axes,
        inner(axes.swapaxes(0, 1), middle[:, None]),
        1 - inner(middle, middle),
        middle,
        towards,
        inner(towards, solids[CENTRE]),
        inner(direction, direction),
    )


def capsule(solids: Array, light: Array) -> tuple[Array, ...]:
    """The fields of Capsule."""
    axis, centre, radius, half = solids[AXES][3:6], solids[CENTRE], solids[HALF][0], solids[HALF][1]
    along, squared = -inner(axis, centre), inner(centre, centre) - radius * radius
    frame = light.swapaxes(0, 1)
    arm = inner(frame, (axis * half)[:, None])
    share = arm[:2] / (arm[0] * arm[0] + arm[1] * arm[1] + np.float32(1e-12))
    gap = along * along - squared
    return axis, centre, along, gap, squared, half, inner(frame, centre[:, None]), arm, share, radius * radius


def _axes(solids: Array) -> Array:
    return solids[AXES].reshape(3, 3, *solids.shape[1:]).swapaxes(0, 1)
