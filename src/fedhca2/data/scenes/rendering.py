"""Rendering scenes by number: one batched program from drawn solids to image and labels."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedhca2.data.scenes.dice import Dice
from fedhca2.data.scenes.indoor import draw_room
from fedhca2.data.scenes.intersection import dot
from fedhca2.data.scenes.labels import Domain, quantise_normals, salient
from fedhca2.data.scenes.outdoor import draw_street
from fedhca2.data.scenes.packing import pack
from fedhca2.data.scenes.ray_casting import lit, nearest, normals
from fedhca2.data.scenes.scene import Scene
from fedhca2.data.scenes.shading import expose, shade
from fedhca2.data.scenes.solids import AXES, CENTRE, CONTEXT, IS_SKY, OBJECT, PART, SEMSEG
from fedhca2.data.scenes.tiles import pixels, untiled
from fedhca2.metrics.edges.boundaries import boundaries

_DRAW: dict[Domain, Callable[[Dice], Scene]] = {"outdoor": draw_street, "indoor": draw_room}


def render(
    domain: Domain,
    indices: Sequence[int],
    *,
    size: tuple[int, int],
    seed: int,
    device: torch.device | str = "cpu",
) -> dict[str, Tensor]:
    """The scenes of these numbers at this height and width, with every label of their domain.

    Scene i depends on (domain, seed, i) alone. Both domains: `image` uint8 [B, 3, H, W], `semseg` uint8 [B, 1, H, W],
    `normals` float32 [B, 3, H, W] (x right, y up, z towards the camera, so that mirroring a picture negates x; unit
    length up to 8-bit rounding; zero in the sky), `edge` float32 {0, 1} [B, 1, H, W]. Outdoor also `human_parts`, `sal`
    uint8 and `context` int16, whose boundaries the edges are. Indoor also `depth` float32, metres along the optical
    axis; its edges are the boundaries of `semseg`.

    >>> batch = render("indoor", [0, 1], size=(32, 40), seed=0)
    >>> batch["image"].shape, sorted(batch)
    (torch.Size([2, 3, 32, 40]), ['depth', 'edge', 'image', 'normals', 'semseg'])
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
    # Few steps for each scene, and yet arrays that fit a CPU's cache, or a few GiB of a GPU's memory. A scene is whole
    # vectors of 64 pixels: the arithmetic, to its last bit, is the same whatever the batch.
    at_once = 2**15 if device.type == "cpu" else 2**20
    return max(1, at_once // (size[0] * size[1]))


def _labelled(domain: Domain, seen: dict[str, Tensor]) -> dict[str, Tensor]:
    labels = {
        "image": seen["image"],
        "semseg": seen["semseg"].to(torch.uint8),
        "normals": quantise_normals(seen["normals"]),
    }
    if domain == "indoor":
        return labels | {"edge": boundaries(labels["semseg"]).float(), "depth": seen["depth"]}
    return labels | {
        "edge": boundaries(seen["context"]).float(),
        "human_parts": seen["human_parts"].to(torch.uint8),
        "sal": salient(seen["object"].long()).to(torch.uint8),
        "context": seen["context"].to(torch.int16),
    }


def see(scenes: list[Scene], size: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
    """The picture of each scene and, as floats, what is at every pixel of it: [b, channels, height, width] each."""
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
