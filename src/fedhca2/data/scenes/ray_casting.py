"""Casting rays: the nearest solid along every ray, the normal there, and whether the light reaches it.

Everything is in the camera frame, whose origin is the eye. Rays are [3, b, n] for b scenes of n pixels, tile by tile;
each is tried only on the solids that can matter to its tile.
"""

import torch
from torch import Tensor

from fedhca2.data.scenes.intersection import HUGE, covers, dot, meet
from fedhca2.data.scenes.packing import World
from fedhca2.data.scenes.solids import AXES, FAR, HALF, IS_BOX, IS_CAPSULE, IS_ELLIPSOID, IS_FLAT, IS_SKY
from fedhca2.data.scenes.tiles import TILES, in_the_way, in_view, pair

_PLACES = 256


def nearest(world: World, rays: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Distance along each unit ray and number of the first solid met: [b, n] each. The sky is at FAR."""
    pairs = pair(world.balls, in_view(world.balls, world.focal, size), rays.device)
    if pairs.places > _PLACES:
        raise ValueError(f"a tile should show at most {_PLACES} solids, found {pairs.places}")
    tiles = rays.view(3, -1, rays.shape[2] // TILES)
    rows = rays.new_full((tiles.shape[1] * pairs.places, tiles.shape[2]), HUGE)
    for some in pairs.by_kind:
        shape = world.shapes[some.kind].pick(some.number)
        rows.index_copy_(0, some.row, meet(shape, tiles.index_select(1, some.tile)))
    distances = rows.view(tiles.shape[1], pairs.places, -1)
    # The sky comes first in every scene, and is in view in every tile.
    distances[:, 0] = FAR
    # Positive floats are in the order of their bits. With the place in the lowest bits, one minimum finds both.
    places = torch.arange(pairs.places, dtype=torch.int32, device=rays.device)[:, None]
    coded = distances.view(torch.int32).bitwise_and(-_PLACES).bitwise_or_(places)
    place = coded.amin(dim=1).bitwise_and_(_PLACES - 1).long()
    distance, solid = distances.gather(1, place[:, None]), pairs.solids.gather(1, place)
    return distance.view(rays.shape[1:]), solid.view(rays.shape[1:])


def normals(hit: Tensor, local: Tensor) -> Tensor:
    """Unit normals [3, ...] where rays met solids: `hit` the solids' columns, `local` the points in their axes."""
    half = hit[HALF]
    face = local / half
    size = face.abs()
    normal = face.sign().mul_(size == size.amax(0)).mul_(hit[IS_BOX])
    normal.addcmul_(face.div_(half), hit[IS_ELLIPSOID]).addcmul_(local, hit[IS_CAPSULE])
    normal[1].sub_(local[1].clamp(-half[1], half[1]).mul_(hit[IS_CAPSULE])).add_(hit[IS_FLAT])
    normal *= dot(normal, normal).rsqrt_()
    return dot(hit[AXES].view(3, 3, *hit.shape[1:]), normal[:, None]).mul_(1 - hit[IS_SKY])


def lit(world: World, index: Tensor, points: Tensor, in_sky: Tensor) -> Tensor:
    """Which points [3, b, n], each on solid `index`, no other solid keeps from the light.

    Planes throw no shadow. A convex solid throws none on its own lit side: leaving it out saves a tolerance.
    """
    tiled = (3, -1, points.shape[2] // TILES)
    turned = dot(world.light.frame.transpose(0, 1), points[:, None])
    nowhere = in_sky * 1e9
    low, high = (turned + nowhere).view(tiled).amin(2), (turned - nowhere).view(tiled).amax(2)
    low_high = torch.stack([low, high]).view(2, 3, -1, TILES).cpu().numpy()
    pairs = pair(world.balls, in_the_way(world.balls, world.frame, *low_high), points.device)
    points, turned, own = points.view(tiled), turned.view(tiled), index.view(tiled[1:]).float()
    rows = points.new_full((len(own) * pairs.places, tiled[2]), -1.0)
    for some in pairs.by_kind:
        shape = world.shapes[some.kind].pick(some.number)
        covered = covers(shape, points.index_select(1, some.tile), turned.index_select(1, some.tile))
        other = own.index_select(0, some.tile).sub_(some.solid[:, None]).abs_().sub_(0.5)
        rows.index_copy_(0, some.row, torch.minimum(covered, other, out=covered))
    return rows.view(len(own), pairs.places, -1).amax(1).view(index.shape) <= 0
