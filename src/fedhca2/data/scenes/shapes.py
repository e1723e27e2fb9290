"""Several scenes' solids and light as tensors: where rays meet solids, and which points solids shade.

Vectors are component first: k solids with n rays each have rays [3, k, n]. All steps are elementwise, so
reduced-precision matrix products cannot affect them, and many work in place, which suits a CPU's cache. Large arrays
see no comparison and no NaN, which cost a CPU twenty times as much as arithmetic: a miss is a huge distance.

What a formula needs to know of a solid is computed once per scene, in float32 and component first: [3, …, p] for p
solids of a kind, [3, …, k, 1] as tensors. `axes` are transposed, so that `dot(axes, ray)` is the ray in the solid's own
axes. The third axis of a light frame points to the light.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedhca2.data.scenes.solids import Kind, Scene, Solid

Array = NDArray[np.float32]
Numbers = tuple[Array, ...]
HUGE = 1e30


class Shape(NamedTuple):
    """The formulas of a kind of solids.

    `prepare` gets solids' columns [columns, p] and their scenes' light frames [3, 3, p], and returns the further
    arguments of `meet` and those of `covers`. `meet` gives the distance [k, n] along unit rays [3, k, n] to each of k
    solids, a huge number for a miss. `covers` is positive [k, n] where each of k solids shades points [3, k, n], which
    it also gets turned into the light's frame. Planes cast no shadow.
    """

    prepare: Callable[[Array, Array], tuple[Numbers, Numbers]]
    meet: Callable[..., Tensor]
    covers: Callable[..., Tensor] | None = None


def _inner(a: Array, b: Array) -> Array:
    """The inner product over the leading three components."""
    product: Array = a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
    return product


def dot(a: Tensor, b: Tensor) -> Tensor:
    """The inner product over the leading three components."""
    return torch.addcmul(a[0] * b[0], a[1], b[1]).addcmul_(a[2], b[2])


def _prepare_plane(solids: Array, light: Array) -> tuple[Numbers, Numbers]:
    normal = solids[Solid.AXES][3:6]
    return (normal, _inner(normal, solids[Solid.CENTRE])), ()


def _meet_plane(ray: Tensor, normal: Tensor, height: Tensor) -> Tensor:
    return _ahead(dot(normal, ray).reciprocal_().clamp_(-1e9, 1e9).mul_(height))


def _prepare_box(solids: Array, light: Array) -> tuple[Numbers, Numbers]:
    axes, half = _axes(solids), solids[Solid.HALF]
    middle = _inner(axes, solids[Solid.CENTRE][:, None])
    slope = _inner(axes, light[2][:, None])
    return (axes, middle, half), (-axes / slope, middle / slope, np.abs(half / slope))


def _meet_box(ray: Tensor, axes: Tensor, middle: Tensor, half: Tensor) -> Tensor:
    inverse = dot(axes, ray[:, None]).reciprocal_().clamp_(-1e9, 1e9)
    middle = inverse * middle
    width = inverse.abs_().mul_(half)
    entry, leave = (middle - width).amax(0), middle.add_(width).amin(0)
    return _ahead(entry, leave.sub_(entry))


def _box_covers(point: Tensor, turned: Tensor, to_light: Tensor, middle: Tensor, half: Tensor) -> Tensor:
    middle = dot(to_light, point[:, None]).add_(middle)
    entry, leave = (middle - half).amax(0), middle.add_(half).amin(0)
    return torch.minimum(torch.sub(leave, entry, out=entry), leave, out=leave)


def _prepare_ellipsoid(solids: Array, light: Array) -> tuple[Numbers, Numbers]:
    # The map to the unit sphere, -d·o as a map of rays, and 1 - |o|²; the same terms for rays to the light.
    axes = _axes(solids) / solids[Solid.HALF]
    middle = _inner(axes, solids[Solid.CENTRE][:, None])
    direction = _inner(axes, light[2][:, None])
    centre, towards = (_inner(axes.swapaxes(0, 1), vector[:, None]) for vector in (middle, direction))
    offset = _inner(towards, solids[Solid.CENTRE])
    return (axes, centre, 1 - _inner(middle, middle)), (axes, middle, towards, offset, _inner(direction, direction))


def _meet_ellipsoid(ray: Tensor, axes: Tensor, centre: Tensor, gap: Tensor) -> Tensor:
    # The smaller root of |o + t d|² = 1.
    a = _squared(dot(axes, ray[:, None]))
    b = dot(centre, ray)
    under = torch.addcmul(b.square(), a, gap)
    return _ahead(b.sub_(_root(under)).div_(a), under)


def _ellipsoid_covers(
    point: Tensor, turned: Tensor, axes: Tensor, middle: Tensor, approach: Tensor, offset: Tensor, squared: Tensor
) -> Tensor:
    b = dot(approach, point).sub_(offset)
    c = _squared(dot(axes, point[:, None]).sub_(middle)).sub_(1)
    return torch.minimum(b.square().sub_(c.mul_(squared)), b.neg_())


def _prepare_capsule(solids: Array, light: Array) -> tuple[Numbers, Numbers]:
    axis, centre, (radius, half, _) = solids[Solid.AXES][3:6], solids[Solid.CENTRE], solids[Solid.HALF]
    along, squared = -_inner(axis, centre), _inner(centre, centre) - radius * radius
    frame = light.swapaxes(0, 1)
    arm = _inner(frame, (axis * half)[:, None])
    share = arm[:2] / (arm[0] * arm[0] + arm[1] * arm[1] + np.float32(1e-12))
    to_meet = (axis, centre, along, along * along - squared, squared, half)
    return to_meet, (_inner(frame, centre[:, None]), arm, share, radius * radius)


def _meet_capsule(
    ray: Tensor, axis: Tensor, centre: Tensor, along: Tensor, gap: Tensor, squared: Tensor, half: Tensor
) -> Tensor:
    slope, approach = dot(axis, ray), dot(centre, ray)
    # The infinite cylinder first; if the ray meets it beyond an end, the sphere at that end.
    a = slope.square().neg_().add_(1).clamp_(min=1e-9)
    b = torch.addcmul(approach, slope, along)
    under = torch.addcmul(b.square(), a, gap)
    side = b.sub_(_root(under)).div_(a)
    height = torch.addcmul(along, side, slope)
    end = half.copysign(height)
    b = approach.addcmul_(end, slope)
    cap = torch.addcmul(b.square(), end, 2 * along - end).sub_(squared)
    beyond = height.abs_().sub_(half).mul_(HUGE).clamp_(0, 1)
    side.lerp_(b.sub_(_root(cap)), beyond)
    return _ahead(side, torch.minimum(under, cap.mul_(beyond), out=under))


def _capsule_covers(
    point: Tensor, turned: Tensor, centre: Tensor, arm: Tensor, share: Tensor, radius_squared: Tensor
) -> Tensor:
    # Seen along the light, a capsule is a flat stadium: is the point inside, and that part of the axis before it?
    x, y = turned[0] - centre[0], turned[1] - centre[1]
    nearest = (x * share[0]).addcmul_(y, share[1]).clamp_(-1, 1)
    x.addcmul_(nearest, arm[0], value=-1)
    y.addcmul_(nearest, arm[1], value=-1)
    inside = torch.addcmul(radius_squared, x, x, value=-1).addcmul_(y, y, value=-1)
    ahead = torch.addcmul(centre[2], nearest, arm[2]).sub_(turned[2])
    return torch.minimum(inside, ahead, out=inside)


SHAPES = {
    Kind.PLANE: Shape(_prepare_plane, _meet_plane),
    Kind.BOX: Shape(_prepare_box, _meet_box, _box_covers),
    Kind.ELLIPSOID: Shape(_prepare_ellipsoid, _meet_ellipsoid, _ellipsoid_covers),
    Kind.CAPSULE: Shape(_prepare_capsule, _meet_capsule, _capsule_covers),
}


def _axes(solids: Array) -> Array:
    return solids[Solid.AXES].reshape(3, 3, *solids.shape[1:]).swapaxes(0, 1)


def _ahead(distance: Tensor, room: Tensor | None = None) -> Tensor:
    """The distance if it is positive and `room` is not negative, otherwise a huge number; overwrites both."""
    least = distance - 1e-6
    if room is not None:
        torch.minimum(least, room, out=least)
    return torch.maximum(distance, least.mul_(-HUGE), out=distance).clamp_(max=HUGE)


def _squared(vector: Tensor) -> Tensor:
    """The squared length of a vector, which it overwrites."""
    x, y, z = vector.square_().unbind()
    return x.add_(y).add_(z)


def _root(square: Tensor) -> Tensor:
    return square.clamp(min=1e-12).sqrt_()  # of zero or less it is slow on a CPU


class Solids(NamedTuple):
    """All solids of a kind: the scene and the row of each, and the numbers that its formulas get."""

    shape: Shape
    scene: Tensor
    row: Tensor
    to_meet: list[Tensor]
    to_cover: list[Tensor]


@dataclass(frozen=True)
class World:
    """Several scenes of at most `most_solids` solids each, and their light.

    A solid has a row, scene by scene; `columns` [columns, rows] describes it. A scene's first row is its sky; rows
    beyond its last solid are empty. `frame` [3, 3, b, 1] has rotations whose third row points to the light; colours are
    [3, b, 1], the rest [b, 1].
    """

    most_solids: int
    columns: Tensor
    solids: list[Solids]
    frame: Tensor
    colour: Tensor
    ambient: Tensor
    haze: Tensor
    noise: Tensor
    focal: Tensor
    key: Tensor


def pack(scenes: list[Scene], device: torch.device) -> World:
    """Put the scenes' solids into tensors, in each scene in the order of their kinds."""

    def tensor(array: NDArray[np.generic]) -> Tensor:
        return torch.from_numpy(array).to(device)

    most_solids = max(len(scene.solids) for scene in scenes)
    rows = np.zeros((len(scenes), most_solids, scenes[0].solids.shape[1]))
    for own, scene in zip(rows, scenes, strict=True):
        own[: len(scene.solids)] = scene.solids[np.argsort(scene.solids[:, Solid.KIND], kind="stable")]
    columns = np.ascontiguousarray(rows.reshape(-1, rows.shape[2]).T, dtype=np.float32)
    kind, texture = columns[Solid.KIND].astype(int), columns[Solid.TEXTURE]
    values = np.stack([scene.light for scene in scenes], axis=1).astype(np.float32)
    x, y, z = direction = values[:3]
    flat = np.sqrt(x * x + y * y)
    across = np.stack([-y / flat, x / flat, np.zeros_like(x)])
    frame = np.stack([across, np.stack([-z * x / flat, -z * y / flat, flat]), direction])
    solids = []
    for k, shape in SHAPES.items():
        mine = np.flatnonzero(kind == k)
        if len(mine):
            prepared = shape.prepare(columns[:, mine], frame[..., mine // most_solids])
            to_meet, to_cover = ([tensor(each)[..., None] for each in some] for some in prepared)
            solids.append(Solids(shape, tensor(mine // most_solids), tensor(mine), to_meet, to_cover))
    masks = [kind == Kind.SKY, kind <= Kind.PLANE, *(kind == k for k in (Kind.BOX, Kind.ELLIPSOID, Kind.CAPSULE))]
    masks += [texture == t for t in range(1, 5)]
    marked = tensor(np.concatenate([columns, np.array(masks, dtype=np.float32)]))
    lights = tensor(values[3:, :, None])
    key = torch.tensor([[scene.key] for scene in scenes], device=device)
    light = (tensor(frame[..., None]), lights[:3], lights[3:6], lights[6], lights[7], lights[8], key)
    return World(most_solids, marked, solids, *light)
