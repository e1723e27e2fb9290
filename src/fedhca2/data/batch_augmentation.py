"""The random choices of a batch as tensors, and the image positions that it reads."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from fedhca2.compiling import ALIGNMENT
from fedhca2.data.choices import Choices
from fedhca2.data.dataset import Sample
from fedhca2.data.transforms import LARGEST_SHARE, Augmentation

Raw = Sequence[tuple[Sample, Augmentation]]  # a batch


@dataclass(frozen=True)
class Plan:
    """The augmentation of every sample in a batch, in two tensors; lengths are of rows and columns."""

    whole: Tensor  # lengths, scaled lengths, and starts of each candidate crop, [B, 4 + 2 · tries]
    real: Tensor  # scale, whether mirrored, whether colours change, and the fields of `Distortion`, [B, 8]

    @property
    def length(self) -> Tensor:
        """Lengths of the images, [B, 2]."""
        return self.whole[:, :2]

    @property
    def scaled(self) -> Tensor:
        """Their lengths when scaled, [B, 2]."""
        return self.whole[:, 2:4]

    @property
    def starts(self) -> Tensor:
        """The start of each candidate crop, [B, tries, 2]."""
        return self.whole[:, 4:].view(len(self.whole), -1, 2)

    @property
    def scale(self) -> Tensor:
        """[B, 1, 1, 1]."""
        return self.real[:, 0].view(-1, 1, 1, 1)

    @property
    def mirrored(self) -> Tensor:
        """[B]."""
        return self.real[:, 1] > 0

    @property
    def distorted(self) -> Tensor:
        """Whether colours change, [B, 1, 1, 1]."""
        return self.real[:, 2].view(-1, 1, 1, 1) > 0

    @property
    def distortion(self) -> Tensor:
        """The fields of `Distortion`, [5, B, 1, 1, 1]."""
        return self.real[:, 3:].T[..., None, None, None]

    def to(self, device: torch.device) -> "Plan":
        """The plan on a device."""
        return Plan(self.whole.to(device, non_blocking=True), self.real.to(device, non_blocking=True))

    def at(self, numbers: Tensor) -> "Plan":
        """The plan of the samples with these numbers."""
        return Plan(self.whole[numbers], self.real[numbers])


def plan(raw: Raw, size: tuple[int, int]) -> Plan:
    """Make the plan of a batch, on the CPU."""
    augmentations = [augmentation for _, augmentation in raw]
    length = np.array([sample["image"].shape[-2:] for sample, _ in raw])
    return plan_all(length, Choices.of(augmentations), size)


def plan_all(length: NDArray[np.int64], choices: Choices, size: tuple[int, int]) -> Plan:
    """Make the plan of samples of these lengths [B, 2], on the CPU."""
    scaled = np.maximum((length * choices.scale[:, None]).astype(np.int64), 1)
    room = np.maximum(scaled - np.array(size), 0)
    starts = (choices.crops * (room[:, None] + 1)).astype(np.int64)
    whole = np.concatenate([length, scaled, starts.reshape(len(starts), -1)], axis=1)
    real = np.stack([choices.scale, choices.mirrored, choices.distorted, *choices.distortion], axis=1)
    return Plan(torch.from_numpy(whole), torch.from_numpy(real.astype(np.float32)))


class Axes(NamedTuple):
    """Like `transforms.Axis`, for every sample [B, target]."""

    nearest: Tensor
    low: Tensor
    high: Tensor
    share: Tensor
    inside: Tensor


def axes(length: Tensor, scaled: Tensor, start: Tensor, target: int, mirrored: Tensor) -> Axes:
    """Like `transforms.axis`, for every sample; the first four arguments are [B, 1]."""
    places = torch.arange(target, device=length.device)
    kept = scaled.clamp(max=target)
    before = (target - kept) // 2
    position = (places - before).clamp(min=0).minimum(kept - 1)
    position = torch.where(mirrored, kept - 1 - position, position)
    position = position + start
    step = 1 / (scaled.double() / length)
    exact = ((position + 0.5) * step - 0.5).clamp(min=0).minimum(length.double() - 1)
    low = exact.long()
    return Axes(
        nearest=(position * step).long().minimum(length - 1),
        low=low,
        high=(low + 1).minimum(length - 1),
        share=(exact - low).float(),
        inside=(places >= before) & (places < before + kept),
    )


def choose_starts(classes: Tensor, plan: Plan, size: tuple[int, int], count: int) -> Tensor:
    """The start of each sample's crop [B, 2]: the first of its tries that is varied, or the last one.

    A crop's number of pixels of a class is Σ_ij rows_i·columns_j over the pixels (i, j) of that class, where rows and
    columns count how often the crop reads each row and column.
    """
    batch, tries, _ = plan.starts.shape
    shares = []
    for side in (0, 1):
        start = plan.starts[..., side].reshape(-1, 1)
        length, scaled = (t[:, side].repeat_interleave(tries)[:, None] for t in (plan.length, plan.scaled))
        read = axes(length, scaled, start, size[side], torch.zeros_like(start, dtype=torch.bool))
        share = torch.zeros(len(start), classes.shape[1 + side], device=classes.device)
        share.scatter_add_(1, read.nearest, read.inside.float())
        shares.append(share.view(batch, tries, -1))
    rows, columns = shares
    each = classes[:, :, None] == torch.arange(count, device=classes.device, dtype=classes.dtype)[:, None]
    # Half precision is exact here: no number exceeds the size of a crop.
    dtype = torch.half if classes.is_cuda else torch.float
    aligned = pad(columns, (0, 0, 0, -tries % ALIGNMENT)).to(dtype)
    in_rows = each.to(dtype).flatten(1, 2) @ aligned.transpose(1, 2)  # [B, H × class, try]
    in_rows = in_rows[..., :tries].float().view(batch, -1, count, tries)
    pixels = torch.einsum("bkh,bhck->bkc", rows, in_rows)
    varied = ((pixels > 0).sum(-1) > 1) & (pixels.amax(-1) < LARGEST_SHARE * pixels.sum(-1))
    varied[:, -1] = True
    first = varied.int().argmax(dim=1)
    return plan.starts[torch.arange(batch, device=classes.device), first]
