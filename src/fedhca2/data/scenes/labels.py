"""The meaning of the scenes' labels: domains, context ids, the 8-bit coding of normals, and saliency."""

from typing import Literal

import torch
from torch import Tensor

from fedhca2.data.label_spaces import NYUD_CLASSES, NYUD_LABELS, PASCAL_CLASSES, PASCAL_LABELS
from fedhca2.tasks import LabelSpace

Domain = Literal["outdoor", "indoor"]

# Besides the maps of the public data sets: which things are in sight, and how many people.
LABELS: dict[Domain, dict[str, LabelSpace]] = {
    "outdoor": {
        **PASCAL_LABELS,
        "things": LabelSpace(names=PASCAL_CLASSES),
        "people": LabelSpace(names=("people",)),
    },
    "indoor": {**NYUD_LABELS, "things": LabelSpace(names=NYUD_CLASSES)},
}
IN_SIGHT = 1000  # a thing is in sight if it covers one of this many pixels

# Ids of the LabelMap (1..459), numbered as PASCAL-Context numbers them.
CONTEXT_IDS: dict[str, int] = {
    "aeroplane": 2,
    "bottle": 34,
    "building": 44,
    "bus": 45,
    "car": 59,
    "chair": 72,
    "cow": 98,
    "dog": 113,
    "fence": 144,
    "grass": 187,
    "ground": 189,
    "mountain": 259,
    "person": 284,
    "pottedplant": 308,
    "road": 324,
    "rock": 326,
    "sheep": 347,
    "sidewalk": 354,
    "sky": 360,
    "snow": 366,
    "diningtable": 397,
    "tree": 420,
    "wall": 440,
    "water": 445,
}
CONTEXT_NAMES = {number: name for name, number in CONTEXT_IDS.items()}


def encode_normals(normals: Tensor) -> Tensor:
    """Encode normals as an 8-bit image: $v = round(127.5 (n + 1))$.

    >>> encode_normals(torch.tensor([-1.0, 0.2, 1.0]))
    tensor([  0, 153, 255], dtype=torch.uint8)
    """
    return ((normals + 1) * 127.5).round().to(torch.uint8)


def decode_normals(code: Tensor) -> Tensor:
    """Decode normals from an 8-bit image: $n = 2v/255 - 1$.

    >>> decode_normals(torch.tensor([0, 153, 255], dtype=torch.uint8))
    tensor([-1.0000,  0.2000,  1.0000])
    """
    return 2 * code.float() / 255 - 1


def quantise_normals(normals: Tensor) -> Tensor:
    """Round normals [B, 3, H, W] to the values of their 8-bit image; a zero vector (no surface) stays zero."""
    return decode_normals(encode_normals(normals)) * (normals != 0).any(dim=1, keepdim=True)


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
    """Which numbers below `count` cover enough pixels of each map [B, 1, H, W], as 0 and 1 [B, count].

    >>> in_sight(torch.tensor([[[[0, 2], [2, 2]]]]), 4)
    tensor([[1., 0., 1., 0.]])
    """
    flat = numbers.flatten(1).long()
    pixels = torch.zeros(len(flat), count, dtype=torch.long, device=flat.device)
    pixels.scatter_add_(1, flat, torch.ones_like(flat))
    return (IN_SIGHT * pixels >= flat.shape[1]).float()


def count_people(semseg: Tensor, objects: Tensor) -> Tensor:
    """How many people are in sight [B, 1], from maps of classes and of object numbers (0: none)."""
    people = torch.where(semseg == PASCAL_CLASSES.index("person"), objects, 0)
    return in_sight(people, int(objects.max()) + 1)[:, 1:].sum(dim=1, keepdim=True)
