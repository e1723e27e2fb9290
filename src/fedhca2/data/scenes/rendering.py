"""Rendering scenes by number: one batched program from drawn solids through rays to image and labels.

Everything is in the camera frame, whose origin is the eye. Rays are [3, b, n] for b scenes of n pixels, tile by tile;
each is only tested against the solids that can affect its tile.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedhca2.data.scenes.dice import Dice
from fedhca2.data.scenes.indoor import draw_room
from fedhca2.data.scenes.intersection import HUGE, covers, dot, meet
from fedhca2.data.scenes.labels import LABELS, Domain, count_people, in_sight, quantise_normals, salient
from fedhca2.data.scenes.outdoor import draw_street
from fedhca2.data.scenes.scene import Scene, World, pack
from fedhca2.data.scenes.shading import expose, shade
from fedhca2.data.scenes.solids import (
    AXES,
    CENTRE,
    CONTEXT,
    FAR,
    HALF,
    IS_BOX,
    IS_CAPSULE,
    IS_ELLIPSOID,
    IS_FLAT,
    IS_SKY,
    OBJECT,
    PART,
    SEMSEG,
)
from fedhca2.data.scenes.tiles import TILES, in_the_way, in_view, pair, pixels, untiled
from fedhca2.metrics.edges import boundaries

_DRAW: dict[Domain, Callable[[Dice], Scene]] = {"outdoor": draw_street, "indoor": draw_room}
_PLACES = 256


def render(
    domain: Domain,
    indices: Sequence[int],
    *,
    size: tuple[int, int],
    seed: int,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """Render these scenes at this height and width, with every label of their domain.

    Scene i depends only on (domain, seed, i). Both domains: `image` uint8 [B, 3, H, W], `semseg` uint8 [B, 1, H, W],
    `normals` float32 [B, 3, H, W] (x right, y up, z towards the camera, so mirroring an image negates x; unit
    length up to 8-bit rounding; zero in the sky), `edge` float32 {0, 1} [B, 1, H, W]. Outdoor also `human_parts`, `sal`
    uint8, `context` int16, whose boundaries the edges are, and `people` [B, 1], how many are in sight. Indoor also
    `depth` float32, metres along the optical axis; its edges are the boundaries of `semseg`. `things` [B, classes] has
    1 for every class of `semseg` in sight.

    >>> batch = render("indoor", [0, 1], size=(32, 40), seed=0)
    >>> batch["image"].shape, sorted(batch)
    (torch.Size([2, 3, 32, 40]), ['depth', 'edge', 'image', 'normals', 'semseg', 'things'])
    """
    if domain not in _DRAW:
        raise ValueError(f"domain should be one of {', '.join(_DRAW)}, found {domain!r}")
    if min(size) < 1 or not len(indices) or min(indices) < 0 or seed < 0:
        raise ValueError(
            f"size should be positive, indices some numbers from 0, seed 0 or more, found {size}, {indices}, {seed}"
        )
    device = torch.device(device)
    scenes = [_DRAW[domain](Dice([seed, list(_DRAW).index(domain), int(i)])) for i in indices]
    step = _scenes_at_once(size, device)
    pieces = [see(scenes[i : i + step], size, device) for i in range(0, len(scenes), step)]
    return _labelled(domain, {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]})


def _scenes_at_once(size: tuple[int, int], device: torch.device) -> int:
    # Few steps per scene, but arrays that fit a CPU's cache, or a few GiB of a GPU's memory. A scene consists of whole
    # vectors of 64 pixels, so the arithmetic is the same to the last bit for any batch size.
    at_once = 2**15 if device.type == "cpu" else 2**20
    return max(1, at_once // (size[0] * size[1]))


def _labelled(domain: Domain, seen: dict[str, Tensor]) -> dict[str, Tensor]:
    labels = {
        "image": seen["image"],
        "semseg": seen["semseg"].to(torch.uint8),
        "normals": quantise_normals(seen["normals"]),
        "things": in_sight(seen["semseg"], len(LABELS[domain]["things"].names)),
    }
    if domain == "indoor":
        return labels | {"edge": boundaries(labels["semseg"]).float(), "depth": seen["depth"]}
    return labels | {
        "edge": boundaries(seen["context"]).float(),
        "human_parts": seen["human_parts"].to(torch.uint8),
        "sal": salient(seen["object"].long()).to(torch.uint8),
        "context": seen["context"].to(torch.int16),
        "people": count_people(seen["semseg"], seen["object"].long()),
    }


def see(scenes: list[Scene], size: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
    """The image of each scene and, as floats, the content of every pixel: [b, channels, height, width] each."""
    world = pack(scenes, device)
    x, y = pixels(size, device)
    unit = torch.from_numpy(world.focal).to(device)[:, None] * (min(size) / 2)
    right = (x + 0.5 - size[1] / 2) / unit
    down = (y + 0.5 - size[0] / 2) / unit
    towards = (right.square() + down.square() + 1).rsqrt()
    rays = torch.stack([right * towards, -down * towards, -towards])
    distance, index = nearest(world, rays, size)
    hit = world.columns.index_select(1, index.flatten()).view(-1, *index.shape)
    points = rays * distance
    local = dot(hit[AXES].view(3, 3, *index.shape).transpose(0, 1), (points - hit[CENTRE])[:, None])
    normal = normals(hit, local)
    colour = shade(hit, local, normal, lit(world, index, points, hit[IS_SKY]), distance, world.light)
    names = {"semseg": SEMSEG, "human_parts": PART, "context": CONTEXT, "object": OBJECT}
    seen = {
        "image": expose(colour, y * size[1] + x, world.light),
        "normals": normal,
        "depth": (distance * towards)[None],
        **{name: hit[column : column + 1] for name, column in names.items()},
    }
    return {name: untiled(values, size) for name, values in seen.items()}


def nearest(world: World, rays: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """The distance along each unit ray and the number of the first solid it meets: [b, n] each. The sky is at FAR."""
    pairs = pair(world.balls, in_view(world.balls, world.focal, size), rays.device)
    if pairs.places > _PLACES:
        raise ValueError(f"a tile should show at most {_PLACES} solids, found {pairs.places}")
    tiles = rays.view(3, -1, rays.shape[2] // TILES)
    rows = rays.new_full((tiles.shape[1] * pairs.places, tiles.shape[2]), HUGE)
    for some in pairs.by_kind:
        shape = world.shapes[some.kind].pick(some.number)
        rows.index_copy_(0, some.row, meet(shape, tiles.index_select(1, some.tile)))
    distances = rows.view(tiles.shape[1], pairs.places, -1)
    # The sky comes first in every scene and is visible in every tile.
    distances[:, 0] = FAR
    # Positive floats sort like their bits. With the place in the lowest bits, one minimum finds both.
    places = torch.arange(pairs.places, dtype=torch.int32, device=rays.device)[:, None]
    coded = distances.view(torch.int32).bitwise_and(-_PLACES).bitwise_or_(places)
    place = coded.amin(dim=1).bitwise_and_(_PLACES - 1).long()
    distance, solid = distances.gather(1, place[:, None]), pairs.solids.gather(1, place)
    return distance.view(rays.shape[1:]), solid.view(rays.shape[1:])


def normals(hit: Tensor, local: Tensor) -> Tensor:
    """Unit normals [3, ...] where rays meet solids: `hit` has the solids' columns, `local` the points in their axes."""
    half = hit[HALF]
    face = local / half
    size = face.abs()
    normal = face.sign().mul_(size == size.amax(0)).mul_(hit[IS_BOX])
    normal.addcmul_(face.div_(half), hit[IS_ELLIPSOID]).addcmul_(local, hit[IS_CAPSULE])
    normal[1].sub_(local[1].clamp(-half[1], half[1]).mul_(hit[IS_CAPSULE])).add_(hit[IS_FLAT])
    normal *= dot(normal, normal).rsqrt_()
    return dot(hit[AXES].view(3, 3, *hit.shape[1:]), normal[:, None]).mul_(1 - hit[IS_SKY])


def lit(world: World, index: Tensor, points: Tensor, in_sky: Tensor) -> Tensor:
    """Which points [3, b, n], each on solid `index`, are not shaded by another solid.

    Planes cast no shadow. A convex solid casts none on its own lit side, so it is skipped, which avoids a tolerance.
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
