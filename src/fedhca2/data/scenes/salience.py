"""Which objects of a picture stand out."""

import torch
from torch import Tensor


def salient(objects: Tensor) -> Tensor:
    """Which pixels [B, 1, H, W] belong to what stands out, from a map of object numbers (0: none).

    A pixel weighs most in the middle (a bell a third of the picture wide, in whole thousandths). The object of the
    greatest weight is salient, and so is the next if it has at least half of that.

    >>> salient(torch.tensor([[[[1, 0, 0, 0], [0, 2, 2, 0], [0, 2, 2, 3]]]])).int()
    tensor([[[[0, 0, 0, 0],
              [0, 1, 1, 0],
              [0, 1, 1, 0]]]], dtype=torch.int32)
    """
    height, width = objects.shape[-2:]
    y, x = (((torch.arange(n, device=objects.device) + 0.5) / n - 0.5) * 3 for n in (height, width))
    # Whole numbers add up alike in any order, so that the device cannot change the choice.
    weight = (1000 * torch.exp(-(y.square()[:, None] + x.square()) / 2)).round().long().expand_as(objects)
    score = torch.zeros(len(objects), int(objects.max()) + 3, dtype=torch.long, device=objects.device)
    score.scatter_add_(1, objects.flatten(1), weight.flatten(1))
    score[:, 0] = 0
    best = score.topk(2, dim=1)
    chosen = (2 * best.values >= best.values[:, :1]) & (best.values > 0)
    first, second = (torch.where(chosen, best.indices, -1)[:, k, None, None, None] for k in (0, 1))
    return (objects == first) | (objects == second)
