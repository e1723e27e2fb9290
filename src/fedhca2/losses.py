"""Losses of the tasks.

Of maps: `(output [B, C, H, W], label [B, C', H, W]) -> scalar`, with 255 = ignore. Of vectors: `(output [B, C],
label [B, C']) -> scalar`, with NaN = unknown.

A batch without a valid label has loss 0 and a zero gradient. All losses are computed in float32 regardless of autocast.
None waits for the device, so a training step can be compiled or captured.
"""

import torch
from torch import Tensor
from torch.nn import functional

from fedhca2.labels import IGNORE


def _mean_over(valid: Tensor, loss: Tensor) -> Tensor:
    """Sum of the loss at valid pixels ÷ their number, 0 if there are none."""
    return torch.where(valid, loss, 0.0).sum() / valid.sum().clamp(min=1)


def cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    r"""Cross entropy of class maps, $\frac{1}{|V|}\sum_{x \in V} -\log p_{g(x)}(x)$ over the valid pixels V.

    >>> cross_entropy(torch.zeros(1, 2, 1, 2), torch.tensor([[[[1, 255]]]]))
    tensor(0.6931)
    """
    label = label.squeeze(1).long()
    total = functional.cross_entropy(output.float(), label, ignore_index=IGNORE, reduction="sum")
    return total / (label != IGNORE).sum().clamp(min=1)


def balanced_cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    """Two-class cross entropy in which each class is weighted by the other's share of the batch's valid pixels.

    >>> balanced_cross_entropy(torch.zeros(1, 2, 1, 4), torch.tensor([[[[1, 0, 0, 0]]]]))
    tensor(0.2599)
    """
    label = label.squeeze(1).long()
    valid, positive = label != IGNORE, label == 1
    share = positive.sum() / valid.sum().clamp(min=1)
    loss = functional.cross_entropy(output.float(), label, ignore_index=IGNORE, reduction="none")
    return _mean_over(valid, loss * torch.where(positive, 1 - share, share))


def edge_bce(output: Tensor, label: Tensor) -> Tensor:
    r"""Binary cross entropy of edge logits, $-0.95\,g\log p - 0.05\,(1-g)\log(1-p)$, for hard or soft labels g.

    >>> edge_bce(torch.zeros(1, 1, 1, 2), torch.tensor([[[[1.0, 255.0]]]]))
    tensor(0.6585)
    """
    output, label = output.float(), label.float()
    valid = label != IGNORE
    target = torch.where(valid, label, 0.0)
    on = 0.95 * target * functional.softplus(-output)
    off = (1 - 0.95) * (1 - target) * functional.softplus(output)
    return _mean_over(valid, on + off)


def normals_l1(output: Tensor, label: Tensor) -> Tensor:
    r"""$\lVert p/\lVert p\rVert - g\rVert_1$ of the three channels, averaged over pixels.

    A prediction of zero length stays zero; its gradient is that of p/10⁻¹², as in the released code.

    >>> normals_l1(torch.tensor([0.0, 0.0, 2.0]).view(1, 3, 1, 1), torch.tensor([0.0, 1.0, 0.0]).view(1, 3, 1, 1))
    tensor(2.)
    """
    valid = (label != IGNORE).all(dim=1)
    distance = (functional.normalize(output.float(), dim=1, eps=1e-12) - label.float()).abs().sum(dim=1)
    return _mean_over(valid, distance)


def depth_l1(output: Tensor, label: Tensor) -> Tensor:
    """Absolute error in metres, averaged over pixels.

    >>> depth_l1(torch.tensor([[[[1.0, 9.0]]]]), torch.tensor([[[[3.0, 255.0]]]]))
    tensor(2.)
    """
    return _mean_over(label != IGNORE, (output.float() - label.float()).abs())


def heat_l2(output: Tensor, label: Tensor) -> Tensor:
    r"""Squared error of heat maps, $(1 + 50\,g)\,(p - g)^2$, averaged over pixels and points: few pixels are near one.

    >>> heat_l2(torch.zeros(1, 1, 1, 2), torch.tensor([[[[1.0, 255.0]]]]))
    tensor(51.)
    """
    label = label.float()
    valid = label != IGNORE
    target = torch.where(valid, label, 0.0)
    return _mean_over(valid, (1 + 50.0 * target) * (output.float() - target).square())


def class_cross_entropy(output: Tensor, label: Tensor) -> Tensor:
    """Cross entropy of one class per image, label [B, 1].

    >>> class_cross_entropy(torch.zeros(2, 2), torch.tensor([[1.0], [torch.nan]]))
    tensor(0.6931)
    """
    valid = ~label.squeeze(1).isnan()
    target = torch.where(valid, label.squeeze(1), 0).long()
    return _mean_over(valid, functional.cross_entropy(output.float(), target, reduction="none"))


def multilabel_bce(output: Tensor, label: Tensor) -> Tensor:
    """Binary cross entropy of each class by itself, label [B, C] of 0 and 1.

    >>> multilabel_bce(torch.zeros(1, 3), torch.tensor([[1.0, 0.0, torch.nan]]))
    tensor(0.6931)
    """
    valid = ~label.isnan()
    target = torch.where(valid, label, 0.0)
    return _mean_over(valid, functional.binary_cross_entropy_with_logits(output.float(), target, reduction="none"))


def smooth_l1(output: Tensor, label: Tensor) -> Tensor:
    """Squared error up to 1 and absolute error beyond, averaged over all values of label [B, C].

    >>> smooth_l1(torch.tensor([[0.0, 0.0]]), torch.tensor([[3.0, torch.nan]]))
    tensor(2.5000)
    """
    valid = ~label.isnan()
    target = torch.where(valid, label, 0.0)
    return _mean_over(valid, functional.smooth_l1_loss(output.float(), target, reduction="none"))
