"""Casting rays: the nearest solid along every ray, the normal there, and whether the light reaches it.

Everything is in the camera frame, whose origin is the eye. Vectors are component first: a ray bundle is [3, b, n] for
b scenes of n rays. All steps are elementwise, so reduced-precision matrix products cannot touch them. Large arrays see
no comparison and no NaN, which cost a CPU twenty times what arithmetic does: a miss is a huge distance.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedhca2.data.scenes.coefficients import Box, Capsule, Ellipsoid, Plane
from fedhca2.data.scenes.solids import AXES, FAR, HALF, KIND, Kind

_HUGE = 1e30
_PLACES = 256


@dataclass(frozen=True)
class Solids:
    """Several scenes' solids [columns, b, p] in the order of their kinds, where each kind starts, and coefficients."""

    table: Tensor
    starts: tuple[int, ...]
    plane: Plane
    box: Box
    ellipsoid: Ellipsoid
    capsule: Capsule

    def span(self, kind: Kind) -> slice:
        """Where a kind's solids are in the table."""
        return slice(self.starts[kind], self.starts[kind + 1])

    def any(self, kind: Kind) -> bool:
        """Whether there are solids of a kind."""
        return self.starts[kind + 1] > self.starts[kind]


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product over the leading three components."""
    return torch.addcmul(a[0] * b[0], a[1], b[1]).addcmul_(a[2], b[2])


def nearest(solids: Solids, rays: Tensor) -> tuple[Tensor, Tensor]:
    """Distance along each unit ray and place in the table of the first solid met: [b, n] each. The sky is at FAR."""
    count = solids.starts[-1]
    if count > _PLACES:
        raise ValueError(f"a scene should have at most {_PLACES} solids, found {count}")
    distances = rays.new_full((rays.shape[1], count, rays.shape[2]), FAR)
    ray = rays[:, :, None]
    distances[:, solids.span(Kind.PLANE)] = _meet_plane(solids.plane, ray)
    if solids.any(Kind.BOX):
        distances[:, solids.span(Kind.BOX)] = _meet_box(solids.box, ray)
    if solids.any(Kind.ELLIPSOID):
        distances[:, solids.span(Kind.ELLIPSOID)] = _meet_ellipsoid(solids.ellipsoid, ray)
    if solids.any(Kind.CAPSULE):
        distances[:, solids.span(Kind.CAPSULE)] = _meet_capsule(solids.capsule, ray)
    # Positive floats are in the order of their bits. With the place in the lowest bits, one minimum finds both.
    place = torch.arange(count, dtype=torch.int32, device=rays.device)[:, None]
    coded = distances.view(torch.int32).bitwise_and(-_PLACES).bitwise_or_(place)
    index = coded.amin(dim=1).bitwise_and_(_PLACES - 1).long()
    return distances.gather(1, index[:, None])[:, 0], index


def _or_miss(distance: Tensor, *lacks: Tensor) -> Tensor:
    """The distance where it is positive and every lack is at most zero, a huge number elsewhere; overwrites all."""
    miss = (1e-6 - distance).clamp_(min=0)
    for lack in lacks:
        miss.add_(lack.clamp_(min=0))
    return distance.add_(miss, alpha=_HUGE).clamp_(max=_HUGE)


def _meet_plane(plane: Plane, ray: Tensor) -> Tensor:
    return _or_miss(dot(plane.normal, ray).reciprocal_().clamp_(-1e9, 1e9).mul_(plane.height))


def _meet_box(box: Box, ray: Tensor) -> Tensor:
    inverse = dot(box.axes, ray[:, None]).reciprocal_().clamp_(-1e9, 1e9)
    middle = inverse * box.middle
    width = inverse.abs_().mul_(box.half)
    entry = (middle - width).amax(0)
    leave = middle.add_(width).amin(0)
    return _or_miss(entry, torch.sub(entry, leave, out=leave))


def _meet_ellipsoid(ellipsoid: Ellipsoid, ray: Tensor) -> Tensor:
    # |o + t d|² = 1, of which the smaller root.
    a = dot(ellipsoid.axes, ray[:, None]).square_().sum(0)
    b = dot(ellipsoid.approach, ray)
    under = torch.addcmul(b.square(), a, ellipsoid.gap)
    return _or_miss(_root(under).add_(b).neg_().div_(a), under.neg_())


def _root(square: Tensor) -> Tensor:
    # The square root of zero or less is slow on a CPU.
    return square.clamp(min=1e-12).sqrt_()


def _meet_capsule(capsule: Capsule, ray: Tensor) -> Tensor:
    slope, approach = dot(capsule.axis, ray), dot(capsule.behind, ray)
    # The infinite cylinder first; where it is met beyond an end, the sphere at that end.
    a = slope.square().neg_().add_(1).clamp_(min=1e-9)
    b = torch.addcmul(approach, slope, capsule.along, value=-1)
    under = torch.addcmul(b.square(), a, capsule.gap)
    side = _root(under).add_(b).neg_().div_(a)
    height = torch.addcmul(capsule.along, side, slope)
    end = capsule.half.copysign(height)
    b = approach.addcmul_(end, slope, value=-1)
    cap = torch.addcmul(b.square(), end, 2 * capsule.along - end).sub_(capsule.squared)
    beyond = height.abs_().sub_(capsule.half).mul_(_HUGE).clamp_(0, 1)
    return _or_miss(side.lerp_(_root(cap).add_(b).neg_(), beyond), under.neg_(), cap.neg_().mul_(beyond))


def normals(hit: Tensor, local: Tensor) -> Tensor:
    """Unit normals [3, b, n] where rays met solids: `hit` the solids' columns, `local` the points in their axes."""
    kind, half = hit[KIND], hit[HALF]
    is_box, is_ellipsoid, is_capsule = ((kind == k).float() for k in (Kind.BOX, Kind.ELLIPSOID, Kind.CAPSULE))
    face = local / half
    size = face.abs()
    normal = face.sign().mul_((size == size.amax(0)).float()).mul_(is_box)
    normal.addcmul_(face.div_(half), is_ellipsoid).addcmul_(local, is_capsule)
    normal[1] -= local[1].clamp(-half[1], half[1]) * is_capsule
    normal[1] += kind <= Kind.PLANE
    normal *= dot(normal, normal).rsqrt_()
    return dot(hit[AXES].view(3, 3, *kind.shape), normal[:, None]) * (kind != Kind.SKY)


def in_shadow(solids: Solids, index: Tensor, points: Tensor, light: Tensor) -> Tensor:
    """Which points [3, b, n], each on solid `index`, another solid keeps from the light of frame `light` [3, 3, b, 1].

    Planes throw no shadow. A convex solid throws none on its own lit side: leaving it out saves a tolerance.
    """
    covered = points.new_full((points.shape[1], solids.starts[-1], points.shape[2]), -1.0)
    point = points[:, :, None]
    if solids.any(Kind.BOX):
        covered[:, solids.span(Kind.BOX)] = _box_covers(solids.box, point)
    if solids.any(Kind.ELLIPSOID):
        covered[:, solids.span(Kind.ELLIPSOID)] = _ellipsoid_covers(solids.ellipsoid, point)
    if solids.any(Kind.CAPSULE):
        along_light = dot(light.transpose(0, 1), points[:, None])[:, :, None]
        covered[:, solids.span(Kind.CAPSULE)] = _capsule_covers(solids.capsule, along_light)
    return covered.scatter_(1, index[:, None], -1.0).amax(dim=1) > 0


# Each of these is positive where the solid covers the point and negative where it does not.
def _box_covers(box: Box, point: Tensor) -> Tensor:
    middle = dot(box.to_light, point[:, None]).add_(box.light_middle)
    entry = (middle - box.light_half).amax(0)
    leave = middle.add_(box.light_half).amin(0)
    return torch.minimum(leave - entry, leave, out=leave)


def _ellipsoid_covers(ellipsoid: Ellipsoid, point: Tensor) -> Tensor:
    b = dot(ellipsoid.light_approach, point).sub_(ellipsoid.light_offset)
    c = dot(ellipsoid.axes, point[:, None]).sub_(ellipsoid.middle).square_().sum(0).sub_(1)
    return torch.minimum(b.square().sub_(c.mul_(ellipsoid.light_squared)), b.neg_())


def _capsule_covers(capsule: Capsule, point: Tensor) -> Tensor:
    # Seen along the light a capsule is a flat stadium: is the point inside, and that stretch of the axis before it?
    x, y = point[0] - capsule.light_centre[0], point[1] - capsule.light_centre[1]
    share = (x * capsule.light_share[0]).addcmul_(y, capsule.light_share[1]).clamp_(-1, 1)
    x.addcmul_(share, capsule.light_arm[0], value=-1)
    y.addcmul_(share, capsule.light_arm[1], value=-1)
    inside = torch.addcmul(capsule.radius_squared, x, x, value=-1).addcmul_(y, y, value=-1)
    ahead = torch.addcmul(capsule.light_centre[2], share, capsule.light_arm[2]).sub_(point[2])
    return torch.minimum(inside, ahead, out=inside)
