"""Where rays meet solids, and which points solids shade, for several solids and rays at a time.

Vectors are component first: k solids with n rays each have rays [3, k, n]. All steps are elementwise, so
reduced-precision matrix products cannot affect them, and many work in place, which suits a CPU's cache. Large arrays
see no comparison and no NaN, which cost a CPU twenty times as much as arithmetic: a miss is a huge distance.

What a formula needs to know of a solid is computed once per scene by `prepare`, in float32 and component first: [3, …,
p] for p solids of a kind, [3, …, k, 1] as tensors. `axes` are transposed, so that `dot(axes, ray)` is the ray in the
solid's own axes. The third axis of a light frame points to the light.
"""

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes.solids import Kind, Solid

Array = NDArray[np.float32]
HUGE = 1e30


def inner(a: Array, b: Array) -> Array:
    """The inner product over the leading three components."""
    product: Array = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product over the leading three components."""
    return torch.addcmul(a[0] * b[0], a[1], b[1]).addcmul_(a[2], b[2])


class Plane(NamedTuple):
    """Its normal, and the distance of the eye below it. It casts no shadow, so nothing asks what it covers."""

    normal: Tensor
    height: Tensor

    @staticmethod
    def prepare(solids: Array, light: Array) -> tuple[Array, ...]:
        """The fields of these solids, in scenes with these light frames."""
        normal = solids[Solid.AXES][3:6]
        return normal, inner(normal, solids[Solid.CENTRE])

    def meet(self, ray: Tensor) -> Tensor:
        """The distance [k, n] along unit rays [3, k, n] to each of k solids; a huge number for a miss."""
        return _ahead(dot(self.normal, ray).reciprocal_().clamp_(-1e9, 1e9).mul_(self.height))


class Box(NamedTuple):
    """Axes, centre and half sizes along them; `to_light` is the same along the light, in units of its slope."""

    axes: Tensor
    middle: Tensor
    half: Tensor
    to_light: Tensor
    light_middle: Tensor
    light_half: Tensor

    @staticmethod
    def prepare(solids: Array, light: Array) -> tuple[Array, ...]:
        """The fields of these solids, in scenes with these light frames."""
        axes, half = _axes(solids), solids[Solid.HALF]
        middle = inner(axes, solids[Solid.CENTRE][:, None])
        slope = inner(axes, light[2][:, None])
        return axes, middle, half, -axes / slope, middle / slope, np.abs(half / slope)

    def meet(self, ray: Tensor) -> Tensor:
        """The distance [k, n] along unit rays [3, k, n] to each of k solids; a huge number for a miss."""
        inverse = dot(self.axes, ray[:, None]).reciprocal_().clamp_(-1e9, 1e9)
        middle = inverse * self.middle
        width = inverse.abs_().mul_(self.half)
        entry, leave = _last(middle - width), _first(middle.add_(width))
        return _ahead(entry, leave.sub_(entry))

    def covers(self, point: Tensor, turned: Tensor) -> Tensor:
        """Positive [k, n] where each of k solids shades points [3, k, n], `turned` into the light's frame."""
        middle = dot(self.to_light, point[:, None]).add_(self.light_middle)
        entry, leave = _last(middle - self.light_half), _first(middle.add_(self.light_half))
        return torch.minimum(torch.sub(leave, entry, out=entry), leave, out=leave)


class Ellipsoid(NamedTuple):
    r"""The map to the unit sphere, $-d \cdot o$ as a map of rays, $1 - |o|^2$; the same terms for rays to the light."""

    axes: Tensor
    centre: Tensor
    gap: Tensor
    middle: Tensor
    light_approach: Tensor
    light_offset: Tensor
    light_squared: Tensor

    @staticmethod
    def prepare(solids: Array, light: Array) -> tuple[Array, ...]:
        """The fields of these solids, in scenes with these light frames."""
        axes = _axes(solids) / solids[Solid.HALF]
        middle = inner(axes, solids[Solid.CENTRE][:, None])
        direction = inner(axes, light[2][:, None])
        centre, towards = (inner(axes.swapaxes(0, 1), vector[:, None]) for vector in (middle, direction))
        offset = inner(towards, solids[Solid.CENTRE])
        return axes, centre, 1 - inner(middle, middle), middle, towards, offset, inner(direction, direction)

    def meet(self, ray: Tensor) -> Tensor:
        """The distance [k, n] along unit rays [3, k, n] to each of k solids; a huge number for a miss."""
        # The smaller root of |o + t d|² = 1.
        a = _squared(dot(self.axes, ray[:, None]))
        b = dot(self.centre, ray)
        under = torch.addcmul(b.square(), a, self.gap)
        return _ahead(b.sub_(_root(under)).div_(a), under)

    def covers(self, point: Tensor, turned: Tensor) -> Tensor:
        """Positive [k, n] where each of k solids shades points [3, k, n], `turned` into the light's frame."""
        b = dot(self.light_approach, point).sub_(self.light_offset)
        c = _squared(dot(self.axes, point[:, None]).sub_(self.middle)).sub_(1)
        return torch.minimum(b.square().sub_(c.mul_(self.light_squared)), b.neg_())


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

    @staticmethod
    def prepare(solids: Array, light: Array) -> tuple[Array, ...]:
        """The fields of these solids, in scenes with these light frames."""
        axis, centre, (radius, half, _) = solids[Solid.AXES][3:6], solids[Solid.CENTRE], solids[Solid.HALF]
        along, squared = -inner(axis, centre), inner(centre, centre) - radius * radius
        frame = light.swapaxes(0, 1)
        arm = inner(frame, (axis * half)[:, None])
        share = arm[:2] / (arm[0] * arm[0] + arm[1] * arm[1] + np.float32(1e-12))
        gap = along * along - squared
        return axis, centre, along, gap, squared, half, inner(frame, centre[:, None]), arm, share, radius * radius

    def meet(self, ray: Tensor) -> Tensor:
        """The distance [k, n] along unit rays [3, k, n] to each of k solids; a huge number for a miss."""
        slope, approach = dot(self.axis, ray), dot(self.centre, ray)
        # The infinite cylinder first; if the ray meets it beyond an end, the sphere at that end.
        a = slope.square().neg_().add_(1).clamp_(min=1e-9)
        b = torch.addcmul(approach, slope, self.along)
        under = torch.addcmul(b.square(), a, self.gap)
        side = b.sub_(_root(under)).div_(a)
        height = torch.addcmul(self.along, side, slope)
        end = self.half.copysign(height)
        b = approach.addcmul_(end, slope)
        cap = torch.addcmul(b.square(), end, 2 * self.along - end).sub_(self.squared)
        beyond = height.abs_().sub_(self.half).mul_(HUGE).clamp_(0, 1)
        side.lerp_(b.sub_(_root(cap)), beyond)
        return _ahead(side, torch.minimum(under, cap.mul_(beyond), out=under))

    def covers(self, point: Tensor, turned: Tensor) -> Tensor:
        """Positive [k, n] where each of k solids shades points [3, k, n], `turned` into the light's frame."""
        # Seen along the light, a capsule is a flat stadium: is the point inside, and that part of the axis before it?
        x, y = turned[0] - self.light_centre[0], turned[1] - self.light_centre[1]
        share = (x * self.light_share[0]).addcmul_(y, self.light_share[1]).clamp_(-1, 1)
        x.addcmul_(share, self.light_arm[0], value=-1)
        y.addcmul_(share, self.light_arm[1], value=-1)
        inside = torch.addcmul(self.radius_squared, x, x, value=-1).addcmul_(y, y, value=-1)
        ahead = torch.addcmul(self.light_centre[2], share, self.light_arm[2]).sub_(turned[2])
        return torch.minimum(inside, ahead, out=inside)


Shape = Plane | Box | Ellipsoid | Capsule
SHAPES: dict[Kind, type[Shape]] = {Kind.PLANE: Plane, Kind.BOX: Box, Kind.ELLIPSOID: Ellipsoid, Kind.CAPSULE: Capsule}


def _axes(solids: Array) -> Array:
    return solids[Solid.AXES].reshape(3, 3, *solids.shape[1:]).swapaxes(0, 1)


def _ahead(distance: Tensor, room: Tensor | None = None) -> Tensor:
    """The distance if it is positive and `room` is not negative, otherwise a huge number; overwrites both."""
    least = distance - 1e-6
    if room is not None:
        torch.minimum(least, room, out=least)
    return torch.maximum(distance, least.mul_(-HUGE), out=distance).clamp_(max=HUGE)


def _first(times: Tensor) -> Tensor:
    """The least of three, which it overwrites."""
    x, y, z = times.unbind()
    return torch.minimum(torch.minimum(x, y, out=x), z, out=x)


def _last(times: Tensor) -> Tensor:
    """The greatest of three, which it overwrites."""
    x, y, z = times.unbind()
    return torch.maximum(torch.maximum(x, y, out=x), z, out=x)


def _squared(vector: Tensor) -> Tensor:
    """The squared length of a vector, which it overwrites."""
    x, y, z = vector.square_().unbind()
    return x.add_(y).add_(z)


def _root(square: Tensor) -> Tensor:
    return square.clamp(min=1e-12).sqrt_()  # of zero or less it is slow on a CPU
