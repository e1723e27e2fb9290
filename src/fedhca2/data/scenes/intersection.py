"""The formulae for where rays meet solids, and which points solids shade, for several solids and rays at a time.

Vectors are component first: k solids with n rays each have rays [3, k, n]. All steps are elementwise, so
reduced-precision matrix products cannot affect them, and many work in place, which suits a CPU's cache. Large arrays
see no comparison and no NaN, which cost a CPU twenty times as much as arithmetic: a miss is a huge distance.
"""

import torch
from torch import Tensor

from fedhca2.data.scenes.coefficients import Box, Capsule, Ellipsoid, Plane, Shape

HUGE = 1e30


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product over the leading three components."""
    return torch.addcmul(a[0] * b[0], a[1], b[1]).addcmul_(a[2], b[2])


def meet(shape: Shape, ray: Tensor) -> Tensor:
    """The distance [k, n] along unit rays [3, k, n] to each of k solids; a huge number for a miss."""
    match shape:
        case Plane():
            return _ahead(dot(shape.normal, ray).reciprocal_().clamp_(-1e9, 1e9).mul_(shape.height))
        case Box():
            return _meet_box(shape, ray)
        case Ellipsoid():
            return _meet_ellipsoid(shape, ray)
        case Capsule():
            return _meet_capsule(shape, ray)


def _ahead(distance: Tensor, room: Tensor | None = None) -> Tensor:
    """The distance if it is positive and `room` is not negative, otherwise a huge number; overwrites both."""
    least = distance - 1e-6
    if room is not None:
        torch.minimum(least, room, out=least)
    return torch.maximum(distance, least.mul_(-HUGE), out=distance).clamp_(max=HUGE)


def _meet_box(box: Box, ray: Tensor) -> Tensor:
    inverse = dot(box.axes, ray[:, None]).reciprocal_().clamp_(-1e9, 1e9)
    middle = inverse * box.middle
    width = inverse.abs_().mul_(box.half)
    entry, leave = _last(middle - width), _first(middle.add_(width))
    return _ahead(entry, leave.sub_(entry))


def _first(times: Tensor) -> Tensor:
    """The least of three, which it overwrites."""
    x, y, z = times.unbind()
    return torch.minimum(torch.minimum(x, y, out=x), z, out=x)


def _last(times: Tensor) -> Tensor:
    """The greatest of three, which it overwrites."""
    x, y, z = times.unbind()
    return torch.maximum(torch.maximum(x, y, out=x), z, out=x)


def _meet_ellipsoid(ellipsoid: Ellipsoid, ray: Tensor) -> Tensor:
    # The smaller root of |o + t d|² = 1.
    a = _squared(dot(ellipsoid.axes, ray[:, None]))
    b = dot(ellipsoid.centre, ray)
    under = torch.addcmul(b.square(), a, ellipsoid.gap)
    return _ahead(b.sub_(_root(under)).div_(a), under)


def _squared(vector: Tensor) -> Tensor:
    """The squared length of a vector, which it overwrites."""
    x, y, z = vector.square_().unbind()
    return x.add_(y).add_(z)


def _root(square: Tensor) -> Tensor:
    # The square root of zero or less is slow on a CPU.
    return square.clamp(min=1e-12).sqrt_()


def _meet_capsule(capsule: Capsule, ray: Tensor) -> Tensor:
    slope, approach = dot(capsule.axis, ray), dot(capsule.centre, ray)
    # The infinite cylinder first; if the ray meets it beyond an end, the sphere at that end.
    a = slope.square().neg_().add_(1).clamp_(min=1e-9)
    b = torch.addcmul(approach, slope, capsule.along)
    under = torch.addcmul(b.square(), a, capsule.gap)
    side = b.sub_(_root(under)).div_(a)
    height = torch.addcmul(capsule.along, side, slope)
    end = capsule.half.copysign(height)
    b = approach.addcmul_(end, slope)
    cap = torch.addcmul(b.square(), end, 2 * capsule.along - end).sub_(capsule.squared)
    beyond = height.abs_().sub_(capsule.half).mul_(HUGE).clamp_(0, 1)
    side.lerp_(b.sub_(_root(cap)), beyond)
    return _ahead(side, torch.minimum(under, cap.mul_(beyond), out=under))


def covers(shape: Shape, point: Tensor, turned: Tensor) -> Tensor:
    """Positive [k, n] where each of k solids shades points [3, k, n], `turned` into the light's frame."""
    match shape:
        case Box():
            return _box_covers(shape, point)
        case Ellipsoid():
            return _ellipsoid_covers(shape, point)
        case Capsule():
            return _capsule_covers(shape, turned)
        case Plane():
            raise TypeError("a shape should cast a shadow, found a plane")


def _box_covers(box: Box, point: Tensor) -> Tensor:
    middle = dot(box.to_light, point[:, None]).add_(box.light_middle)
    entry, leave = _last(middle - box.light_half), _first(middle.add_(box.light_half))
    return torch.minimum(torch.sub(leave, entry, out=entry), leave, out=leave)


def _ellipsoid_covers(ellipsoid: Ellipsoid, point: Tensor) -> Tensor:
    b = dot(ellipsoid.light_approach, point).sub_(ellipsoid.light_offset)
    c = _squared(dot(ellipsoid.axes, point[:, None]).sub_(ellipsoid.middle)).sub_(1)
    return torch.minimum(b.square().sub_(c.mul_(ellipsoid.light_squared)), b.neg_())


def _capsule_covers(capsule: Capsule, point: Tensor) -> Tensor:
    # Seen along the light, a capsule is a flat stadium: is the point inside, and that part of the axis before it?
    x, y = point[0] - capsule.light_centre[0], point[1] - capsule.light_centre[1]
    share = (x * capsule.light_share[0]).addcmul_(y, capsule.light_share[1]).clamp_(-1, 1)
    x.addcmul_(share, capsule.light_arm[0], value=-1)
    y.addcmul_(share, capsule.light_arm[1], value=-1)
    inside = torch.addcmul(capsule.radius_squared, x, x, value=-1).addcmul_(y, y, value=-1)
    ahead = torch.addcmul(capsule.light_centre[2], share, capsule.light_arm[2]).sub_(point[2])
    return torch.minimum(inside, ahead, out=inside)
