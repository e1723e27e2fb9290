"""Rendering scenes by number: one batched program from drawn solids through rays to image and labels.

Everything is in the camera frame, whose origin is the eye. Rays are [3, b, n] for b scenes of n pixels.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from fedhca2.data.files import decode_normals
from fedhca2.data.label_spaces import CONTEXT_IDS, PASCAL_CLASSES, PERSON, SCENE_LABELS, Domain
from fedhca2.data.scenes.drawing import draw_room, draw_street
from fedhca2.data.scenes.shapes import HUGE, World, dot, pack
from fedhca2.data.scenes.solids import FAR, Dice, Scene, Solid
from fedhca2.metrics.edges import boundaries

_DRAW: dict[Domain, Callable[[Dice], Scene]] = {"outdoor": draw_street, "indoor": draw_room}
_MAX_SOLIDS = 256  # of a scene: those that are drawn have far fewer
_PASCAL = {CONTEXT_IDS[name]: number for number, name in enumerate(PASCAL_CLASSES) if name in CONTEXT_IDS}


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
    device = torch.device(device)
    scenes = [_DRAW[domain](Dice([seed, list(_DRAW).index(domain), int(i)])) for i in indices]
    # Few steps, but arrays that fit a CPU's cache or some GiB of a GPU.
    pixels = 2**13 if device.type == "cpu" else 2**18
    step = max(1, pixels // (size[0] * size[1]))
    pieces = [see(scenes[i : i + step], size, device) for i in range(0, len(scenes), step)]
    return _labelled(domain, {name: torch.cat([piece[name] for piece in pieces]) for name in pieces[0]})


def _labelled(domain: Domain, seen: dict[str, Tensor]) -> dict[str, Tensor]:
    normals, code, objects = seen["normals"], seen["code"].long(), seen["object"].long()
    labels = {
        "image": seen["image"],
        "edge": boundaries(code).float(),
        "normals": decode_normals(encode_normals(normals)) * (normals != 0).any(dim=1, keepdim=True),  # none in the sky
    }
    if domain == "indoor":
        labels |= {"semseg": code.to(torch.uint8), "depth": seen["depth"]}
    else:
        pascal = torch.tensor([_PASCAL.get(id, 0) for id in range(max(CONTEXT_IDS.values()) + 1)], device=code.device)
        semseg = pascal[code]
        labels |= {
            "semseg": semseg.to(torch.uint8),
            "human_parts": seen["human_parts"].to(torch.uint8),
            "sal": salient(objects).to(torch.uint8),
            "context": code.to(torch.int16),
            "people": count_people(semseg, objects),
        }
    return labels | {"things": in_sight(labels["semseg"], len(SCENE_LABELS[domain]["things"].names))}


def see(scenes: list[Scene], size: tuple[int, int], device: torch.device) -> dict[str, Tensor]:
    """The image of each scene and, as floats, the content of every pixel: [b, channels, height, width] each."""
    world, (height, width) = pack(scenes, device), size
    # Whole vectors of 64 pixels, so that the arithmetic is the same to the last bit for any batch: the rest is cut off.
    pixel = torch.arange(-(-height * width // 64) * 64, device=device)
    unit = world.focal * (min(size) / 2)
    right = (pixel % width + 0.5 - width / 2) / unit
    down = (pixel // width + 0.5 - height / 2) / unit
    towards = (right.square() + down.square() + 1).rsqrt()
    rays = torch.stack([right * towards, -down * towards, -towards])
    distance, index = nearest(world, rays)
    hit = world.columns.index_select(1, index.flatten()).view(-1, *index.shape)
    points = rays * distance
    local = dot(hit[Solid.AXES].view(3, 3, *index.shape).transpose(0, 1), (points - hit[Solid.CENTRE])[:, None])
    normal = normals(hit, local)
    colour = shade(hit, local, normal, lit(world, index, points), distance, world)
    seen = {
        "image": expose(colour, pixel, world),
        "normals": normal,
        "depth": (distance * towards)[None],
        "code": hit[Solid.CODE][None],
        "human_parts": hit[Solid.PART][None],
        "object": hit[Solid.OBJECT][None],
    }
    images = {name: values[..., : height * width].view(*values.shape[:2], *size) for name, values in seen.items()}
    return {name: values.transpose(0, 1).contiguous() for name, values in images.items()}


def nearest(world: World, rays: Tensor) -> tuple[Tensor, Tensor]:
    """The distance along each unit ray and the row of the first solid it meets: [b, n] each. The sky is at FAR."""
    rows = rays.new_full((world.columns.shape[1], rays.shape[2]), HUGE)
    for some in world.solids:
        rows.index_copy_(0, some.row, some.shape.meet(rays.index_select(1, some.scene), *some.to_meet))
    distances = rows.view(-1, world.most_solids, rays.shape[2])
    distances[:, 0] = FAR
    # Positive floats sort like their bits. With the place in the lowest bits, one minimum finds both.
    numbers = torch.arange(world.most_solids, dtype=torch.int32, device=rays.device)[:, None]
    coded = distances.view(torch.int32).bitwise_and(-_MAX_SOLIDS).bitwise_or_(numbers)
    number = coded.amin(dim=1).bitwise_and_(_MAX_SOLIDS - 1).long()
    first = torch.arange(0, len(rows), world.most_solids, device=rays.device)[:, None]
    return distances.gather(1, number[:, None])[:, 0], number + first


def normals(hit: Tensor, local: Tensor) -> Tensor:
    """Unit normals [3, ...] where rays meet solids: `hit` has the solids' columns, `local` the points in their axes."""
    half = hit[Solid.HALF]
    face = local / half
    size = face.abs()
    normal = face.sign().mul_(size == size.amax(0)).mul_(hit[Solid.IS_BOX])
    normal.addcmul_(face.div_(half), hit[Solid.IS_ELLIPSOID]).addcmul_(local, hit[Solid.IS_CAPSULE])
    normal[1].sub_(local[1].clamp(-half[1], half[1]).mul_(hit[Solid.IS_CAPSULE])).add_(hit[Solid.IS_FLAT])
    normal *= dot(normal, normal).rsqrt_()
    return dot(hit[Solid.AXES].view(3, 3, *hit.shape[1:]), normal[:, None]).mul_(1 - hit[Solid.IS_SKY])


def lit(world: World, index: Tensor, points: Tensor) -> Tensor:
    """Which points [3, b, n], each on the solid of row `index`, are not shaded by another solid.

    Planes cast no shadow. A convex solid casts none on its own lit side, so it is skipped, which avoids a tolerance.
    """
    turned = dot(world.frame.transpose(0, 1), points[:, None])
    rows, own = points.new_full((world.columns.shape[1], points.shape[2]), -1.0), index.float()
    for some in world.solids:
        if some.shape.covers is not None:
            own_points = (each.index_select(1, some.scene) for each in (points, turned))
            covered = some.shape.covers(*own_points, *some.to_cover)
            other = own.index_select(0, some.scene).sub_(some.row[:, None]).abs_().sub_(0.5)
            rows.index_copy_(0, some.row, torch.minimum(covered, other, out=covered))
    return rows.view(len(own), world.most_solids, -1).amax(1) <= 0


def scramble(number: Tensor) -> Tensor:
    """Hash int64 numbers to 32 well-mixed bits, the same on every device.

    >>> scramble(torch.tensor([1, 2]))
    tensor([3901296832, 3507691905])
    """
    number = (number & 0xFFFFFFFF).mul_(0x7FEB352D).bitwise_and_(0xFFFFFFFF)
    number.bitwise_xor_(number >> 15).mul_(0x046CA68B).bitwise_and_(0xFFFFFFFF)
    return number.bitwise_xor_(number >> 16)


def shade(hit: Tensor, local: Tensor, normal: Tensor, lit: Tensor, distance: Tensor, world: World) -> Tensor:
    """Linear colour [3, b, n]: albedo times ambient and direct light, faded into the haze; the sky keeps its colour.

    The albedo of a surface point is its solid's two colours, mixed by the solid's texture.
    """
    position = (local * hit[Solid.FREQUENCY]).add_(hit[Solid.OFFSET])
    cell = position.floor()
    checks = (cell[0] + cell[1]).add_(cell[2]).remainder_(2)
    i, j, k = cell.long()
    cells = scramble(i.mul_(7919).add_(j.mul_(104729)).add_(k.mul_(1299709))) / float(0xFFFFFFFF)
    x, y, z = position
    stripes = (0.6 * y).add_(x).add_(0.3 * z).mul_(3.1416).sin_().mul_(4).clamp_(-1, 1).add_(1).div_(2)
    waves = (2.3 * x).add_((1.3 * y).sin_(), alpha=2).sin_()
    blotches = (2.1 * y).add_((1.7 * z).add_(x).sin_(), alpha=2).sin_().add_(waves).div_(4).add_(0.5)
    mix = checks.mul_(hit[Solid.IS_CHECKED]).addcmul_(stripes, hit[Solid.IS_STRIPED])
    mix.addcmul_(blotches, hit[Solid.IS_BLOTCHED]).addcmul_(cells, hit[Solid.IS_CELLED])
    albedo = torch.lerp(hit[Solid.COLOURS][:3], hit[Solid.COLOURS][3:], mix)
    direct = dot(normal, world.frame[2]).clamp_(min=0).mul_(lit)
    lighted = (direct * world.colour).add_(world.ambient).mul_(albedo)
    clear = (distance * -world.haze).exp_()
    return lighted.lerp_(world.ambient * 1.4, 1 - clear).lerp_(albedo, hit[Solid.IS_SKY])


def expose(colour: Tensor, pixel: Tensor, world: World) -> Tensor:
    """The 8-bit image [3, b, n]: gamma 2, and noise that depends only on the scene's key and the pixel's number."""
    number = pixel * 3 + torch.arange(3, device=pixel.device)[:, None]
    bits = scramble(number[:, None] + world.key)
    # Two halves of 16 bits add up to a triangular distribution: mean 65535, standard deviation 26755.
    tent = (bits & 0xFFFF).add_(bits >> 16).sub_(0xFFFF)
    noise = tent * (world.noise / 26755)
    return noise.add_(colour.clamp_(0, 1).sqrt_()).mul_(255).round_().clamp_(0, 255).to(torch.uint8)


def encode_normals(normals: Tensor) -> Tensor:
    """Encode normals as an 8-bit image: $v = round(127.5 (n + 1))$.

    >>> encode_normals(torch.tensor([-1.0, 0.2, 1.0]))
    tensor([  0, 153, 255], dtype=torch.uint8)
    """
    return ((normals + 1) * 127.5).round().to(torch.uint8)


def salient(objects: Tensor) -> Tensor:
    """The salient pixels [B, 1, H, W], from a map of object numbers (0: none).

    A pixel's weight is largest in the middle (a bell a third of the image wide, in whole thousandths). The object with
    the greatest weight is salient, and so is the next one if it has at least half of that weight.

    >>> salient(torch.tensor([[[[1, 0, 0, 0], [0, 2, 2, 0], [0, 2, 2, 3]]]])).int()
    tensor([[[[0, 0, 0, 0],
              [0, 1, 1, 0],
              [0, 1, 1, 0]]]], dtype=torch.int32)
    """
    height, width = objects.shape[-2:]
    y, x = (((torch.arange(n, device=objects.device) + 0.5) / n - 0.5) * 3 for n in (height, width))
    # Integers give the same sum in any order, so the device cannot change the choice.
    weight = (1000 * torch.exp(-(y.square()[:, None] + x.square()) / 2)).round().long().expand_as(objects)
    score = torch.zeros(len(objects), int(objects.max()) + 3, dtype=torch.long, device=objects.device)
    score.scatter_add_(1, objects.flatten(1), weight.flatten(1))
    score[:, 0] = 0
    best = score.topk(2, dim=1)
    chosen = (2 * best.values >= best.values[:, :1]) & (best.values > 0)
    first, second = (torch.where(chosen, best.indices, -1)[:, k, None, None, None] for k in (0, 1))
    return (objects == first) | (objects == second)


def in_sight(numbers: Tensor, count: int) -> Tensor:
    """Which numbers below `count` cover at least one in 1000 pixels of each map [B, 1, H, W], as 0 and 1 [B, count].

    >>> in_sight(torch.tensor([[[[0, 2], [2, 2]]]]), 4)
    tensor([[1., 0., 1., 0.]])
    """
    flat = numbers.flatten(1).long()
    pixels = torch.zeros(len(flat), count, dtype=torch.long, device=flat.device)
    pixels.scatter_add_(1, flat, torch.ones_like(flat))
    return (1000 * pixels >= flat.shape[1]).float()


def count_people(semseg: Tensor, objects: Tensor) -> Tensor:
    """How many people are in sight [B, 1], from maps of classes and of object numbers (0: none)."""
    people = torch.where(semseg == PERSON, objects, 0)
    return in_sight(people, int(objects.max()) + 1)[:, 1:].sum(dim=1, keepdim=True)
