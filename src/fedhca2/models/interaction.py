"""Task interaction inside a client: its decoders' maps exchange features before the heads get them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fedhca2.models.config import ModelConfig
from fedhca2.models.features import STRIDES, resample
from fedhca2.models.own import make


def build_interaction(config: ModelConfig, tasks: Sequence[str], width: int) -> nn.Module | None:
    """The module for these tasks' maps of this width; None if the config has none, or one task has nobody to ask."""
    if config.interaction is None or len(tasks) < 2:
        return None
    if config.interaction.is_own:
        return make("interaction", config.interaction, tuple(tasks), width)
    is_coarse = config.decoder.kind == "deeplab"  # other decoders give maps of the finest stride
    return CrossAttention(tasks, width, 1 if is_coarse else config.encoder.output_stride // STRIDES[0])


class CrossAttention(nn.Module):
    """Places of all tasks' maps, averaged to the encoder's coarsest stride, attend to each other.

    What they gather is projected, upsampled and added. The projection starts at zero, so the model starts as without.
    """

    def __init__(self, tasks: Sequence[str], width: int, reduction: int, heads: int = 4) -> None:
        """`reduction` is how many times coarser maps become; raises ValueError if the heads cannot share the width."""
        super().__init__()
        if width % heads:
            raise ValueError(f"interaction cross_attention: expected maps of a width that {heads} divides, got {width}")
        self.tasks, self.reduction, self.heads = tuple(tasks), reduction, heads
        self.pool = nn.AvgPool2d(reduction, ceil_mode=True, count_include_pad=False)
        self.norm = nn.LayerNorm(width)
        self.names = nn.Embedding(len(tasks), width)  # tells tasks apart
        self.qkv = nn.Linear(width, 3 * width)
        self.project = _FromZero(width, width)

    def forward(self, maps: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Each task's map [B, width, H, W], plus what it gathered from all of them; raises ValueError for others."""
        stacked = torch.stack([maps[task] for task in self.tasks], dim=1)
        if stacked.ndim != 5:
            raise ValueError(f"expected maps [B, width, H, W] of all tasks, got {tuple(maps[self.tasks[0]].shape)}")
        coarse = self.pool(stacked.flatten(0, 1))
        tokens = self.norm(coarse.flatten(2).transpose(1, 2)).unflatten(0, stacked.shape[:2])
        tokens = (tokens + self.names.weight[:, None]).flatten(1, 2)  # [B, tasks × places, width]
        q, k, v = self.qkv(tokens).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        gathered = self.project(attended).reshape(*coarse.shape[:1], -1, coarse.shape[1]).transpose(1, 2)
        added = resample(gathered.reshape(coarse.shape), stacked.shape[-2:], 1 / self.reduction)
        return {
            task: maps[task] + each for task, each in zip(self.tasks, added.view_as(stacked).unbind(1), strict=True)
        }

    def extra_repr(self) -> str:
        """What distinguishes its kind from others with parameters of the same shapes."""
        return f"{', '.join(self.tasks)}, heads={self.heads}"


class _FromZero(nn.Linear):
    """A linear layer that starts at zero, also when a client draws its own."""

    def reset_parameters(self) -> None:
        """Fill it with zeros."""
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)
