"""Encoders: any timm backbone whose last four feature maps are at strides 4, 8, 16 and 32."""

from collections.abc import Sequence
from functools import cache
from typing import Any

import timm
import torch
from timm.models.swin_transformer import SwinTransformerBlock, window_partition, window_reverse
from torch import Tensor, nn
from torch.nn import functional

from fedhca2.models.config import SWIN_T, EncoderConfig
from fedhca2.models.pretrained import digest, load_weights
from fedhca2.models.stochastic_depth import take_over_drop_paths

STRIDES = [4, 8, 16, 32]

# Small Swin transformers that timm does not have: they train in minutes on a CPU.
SMALL: dict[str, dict[str, Any]] = {
    "swin_micro": {"embed_dim": 16, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8), "window_size": 4},
    "swin_mini": {"embed_dim": 32, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8), "window_size": 4},
}
# Windows and their shift are never reduced to the size of a map, so one model works for images of every size.
SWIN = {"always_partition": True, "strict_img_size": False}


class FeatureNorms(nn.ModuleList):
    """A LayerNorm on each map of a channels-last backbone; the result has channels second."""

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Convert [B, H, W, C] to normalised maps [B, C, H, W]."""
        return [norm(feature).permute(0, 3, 1, 2) for norm, feature in zip(self, features, strict=True)]


class Projections(nn.ModuleList):
    """Maps of any widths, projected to a common width and normalised, so that any decoder of that width fits."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__(
            nn.Sequential(nn.Conv2d(count, width, kernel_size=1), nn.GroupNorm(1, width)) for count in channels
        )

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Project every map."""
        return [project(feature) for project, feature in zip(self, features, strict=True)]


class Encoder(nn.Module):
    """A timm backbone that returns four feature maps [B, C, H, W].

    Channels-last backbones get a LayerNorm on each map, like the papers' Swin. With a `width`, all maps are projected
    to it; the projections belong to the encoder, since they depend on its widths.
    """

    def __init__(self, config: EncoderConfig, size: tuple[int, int], width: int | None = None) -> None:
        super().__init__()
        name = SWIN_T if config.name in SMALL else config.name
        options: dict[str, Any] = {"drop_path_rate": config.drop_path, "features_only": True}
        if config.output_stride != STRIDES[-1]:
            options["output_stride"] = config.output_stride
        if "swin_" in config.name:
            options |= SWIN | SMALL.get(config.name, {})
        elif "swin" in config.name:  # the second version, which only timm has
            options["img_size"] = size
        self.body = timm.create_model(name, out_indices=_last_four(name, config.output_stride), **options)
        as_released(self.body)
        self.drop_paths = take_over_drop_paths(self.body)
        if config.drop_path and not self.drop_paths:
            raise ValueError(f"encoder {config.name!r} should have paths that drop_path can drop, found none")
        self.channels: list[int] = _feature_info(self.body).channels()
        channels_last = str(getattr(self.body, "output_fmt", "NCHW")).endswith("NHWC")
        self.norms = FeatureNorms(nn.LayerNorm(channels) for channels in self.channels) if channels_last else None
        if config.weights != "none":
            _check_digest(config)
            load_weights(self, config.name, config.weights)
        self.projections = Projections(self.channels, width) if width else None
        self.channels = [width] * len(self.channels) if width else self.channels

    def forward(self, image: Tensor) -> list[Tensor]:
        """Compute four maps, from fine to coarse."""
        features: list[Tensor] = self.body(image)
        features = features if self.norms is None else self.norms(features)
        return features if self.projections is None else self.projections(features)


@cache
def _last_four(name: str, output_stride: int) -> range:
    """Which feature maps of a timm model to use, found by building it on the meta device."""
    dilated: dict[str, Any] = {"output_stride": output_stride} if output_stride != STRIDES[-1] else {}
    try:
        with torch.device("meta"):
            strides = _feature_info(timm.create_model(name, features_only=True, **dilated)).reduction()
    except TypeError as error:
        raise ValueError(f"encoder {name!r}: {error}") from error
    if strides[-4:] != [min(stride, output_stride) for stride in STRIDES]:
        raise ValueError(f"encoder {name!r} should have feature maps at strides 4, 8, 16 and 32, found {strides}")
    return range(len(strides) - 4, len(strides))


def _feature_info(body: nn.Module) -> Any:
    return body.feature_info


def _check_digest(config: EncoderConfig) -> None:
    if config.sha256 is not None and (found := digest(config.weights)) != config.sha256:
        raise ValueError(f"weights {config.weights!r} should have sha256 {config.sha256}, found {found}")


Size = tuple[int, int]
APART = -100.0  # added to the score of two positions that only the roll brought together


class ReleasedBlock(SwinTransformerBlock):
    """timm's block as mmseg computes it: a map is padded to whole windows before it is rolled.

    timm rolls first, which gives different results if a map is not a multiple of the window.
    """

    def _attn(self, x: Tensor) -> Tensor:
        _, height, width, channels = x.shape
        window, shift = self.window_size, self.shift_size
        x = functional.pad(x, (0, 0, 0, -width % window[1], 0, -height % window[0]))
        size = (x.shape[1], x.shape[2])
        mask = None
        if any(shift):
            x = x.roll((-shift[0], -shift[1]), dims=(1, 2))
            mask = roll_mask(size, window, shift, x.device)
        windows = window_partition(x, window).view(-1, self.window_area, channels)
        attended = self.attn(windows, mask=mask).view(-1, *window, channels)
        x = window_reverse(attended, window, *size)
        if any(shift):
            x = x.roll(shift, dims=(1, 2))
        return x[:, :height, :width]


def roll_mask(size: Size, window: Size, shift: Size, device: torch.device) -> Tensor:
    """What to add to the scores [windows, places, places] of a map of this size that was rolled up and left.

    >>> roll_mask((2, 2), (2, 2), (1, 0), torch.device("cpu"))
    tensor([[[   0.,    0., -100., -100.],
             [   0.,    0., -100., -100.],
             [-100., -100.,    0.,    0.],
             [-100., -100.,    0.,    0.]]])
    """
    below, right = (torch.arange(n, device=device) >= n - s for n, s in zip(size, shift, strict=True))
    corner = 2 * below[:, None] + right  # which of the map's four corners a position came from
    corner = window_partition(corner[None, ..., None], window).view(-1, window[0] * window[1])
    return torch.where(corner[:, :, None] == corner[:, None], 0.0, APART)


def as_released(body: nn.Module) -> None:
    """Make a timm Swin transformer compute what mmseg's does, in place; other backbones are unchanged."""
    blocks = [module for module in body.modules() if type(module) is SwinTransformerBlock]
    for block in blocks:
        block.__class__ = ReleasedBlock
    if blocks:
        embedding = body.get_submodule("patch_embed")
        embedding.dynamic_img_pad = True  # type: ignore[assignment]  # an image to whole patches
