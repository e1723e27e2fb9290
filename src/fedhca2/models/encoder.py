"""Encoders: any timm backbone with feature maps at strides 4, 8, 16 and 32, or a single one, as plain transformers."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from functools import cache, partial
from typing import Any, Self

import timm
import torch
from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn

from fedhca2.imports import explain_errors
from fedhca2.models import layers
from fedhca2.models.config import SWIN_T, EncoderConfig
from fedhca2.models.layers import STRIDES
from fedhca2.models.own import make
from fedhca2.models.pretrained import digest, load_weights

# Small Swin transformers that timm does not have: they train in minutes on a CPU.
SMALL: dict[str, dict[str, Any]] = {
    "swin_micro": {"embed_dim": 16, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8), "window_size": 4},
    "swin_mini": {"embed_dim": 32, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8), "window_size": 4},
}


class Encoder(nn.Module):
    """A backbone from timm or a user's own, and layers that turn its output into four feature maps [B, C, H, W].

    Channels-last backbones get a LayerNorm on each map, like the papers' Swin, and plain transformers a feature
    pyramid. With a `width`, all maps are projected to it; the projections belong to the encoder, since they depend on
    its widths. `fixed` names the tensors of a frozen backbone, and `stays` trained ones that are not shared.
    """

    def __init__(self, config: EncoderConfig, size: Sequence[int], width: int | None = None) -> None:
        """:param size: height and width of images, or the shape of other inputs."""
        super().__init__()
        self.body, channels, patch = _body(config, size)
        self.drop_paths = layers.take_over_drop_paths(self.body)
        if config.drop_path and not self.drop_paths:
            raise ValueError(f"encoder {config.name!r}: expected paths that drop_path can drop, got none")
        channels_last = str(getattr(self.body, "output_fmt", "NCHW")).endswith("NHWC")
        self.norms = layers.FeatureNorms(nn.LayerNorm(count) for count in channels) if channels_last else None
        if config.weights != "none":
            if config.sha256 is not None and (actual := digest(config.weights)) != config.sha256:
                raise ValueError(f"weights {config.weights!r}: expected sha256 {config.sha256}, got {actual}")
            load_weights(self, config.title, config.weights)
        self.fixed, self.stays = _fix(self.body, config, size)
        self.pyramid = layers.FeaturePyramid(channels[0], width or 128, patch) if patch else None
        channels = [width or 128] * len(STRIDES) if patch else channels
        self.projections = layers.Projections(channels, width) if width and not patch else None
        self.channels: list[int] = [width] * len(channels) if width else channels

    def forward(self, image: Tensor) -> list[Tensor]:
        """Compute four maps, from fine to coarse."""
        features: list[Tensor] = self.body(image)
        features = features if self.norms is None else self.norms(features)
        if self.pyramid is not None:
            return self.pyramid(features[0], image.shape[-2:])  # type: ignore[no-any-return]
        return features if self.projections is None else self.projections(features)

    def train(self, mode: bool = True) -> Self:
        """Set the mode, and let a backbone forget what it computed from its weights: older ones only do in training."""
        super().train()
        return super().train(mode)

    def hold_fixed(self) -> None:
        """Keep a frozen backbone as it is in training."""
        if self.fixed:
            self.train(self.training)
            self.body.eval()
            for name, parameter in self.named_parameters():
                if name in self.fixed:
                    parameter.requires_grad_(False)


def _body(config: EncoderConfig, size: Sequence[int]) -> tuple[nn.Module, list[int], int]:
    """A backbone, the widths of its maps, and its patch if it has only one map."""
    if config.kind != "timm":
        mlp = layers.Mlp if config.widths is None else partial(layers.Mlp, widths=config.widths)
        own = make("encoder", config) if config.is_own else mlp(size)
        return own, list(own.channels), 0  # type: ignore[arg-type]
    name, maps, patch, drops, known = _backbone(config.name, config.output_stride)
    options = {**known, "drop_path_rate": config.drop_path} if drops else {**known}
    if "swin_" in config.name:
        # Windows and their shift are never reduced to the size of a map, so one model works for images of every size.
        options |= {"always_partition": True, "strict_img_size": False} | SMALL.get(config.name, {})
    elif "swin" in config.name:  # the second version, which only timm has
        options["img_size"] = tuple(size)
    body = timm.create_model(name, features_only=True, out_indices=maps, **options)
    for block in [module for module in body.modules() if type(module) is SwinTransformerBlock]:
        block.__class__ = layers.ReleasedBlock
        body.get_submodule("patch_embed").dynamic_img_pad = True  # type: ignore[assignment]  # an image to whole patches
    return body, _feature_info(body).channels(), patch


def _fix(body: nn.Module, config: EncoderConfig, size: Sequence[int]) -> tuple[frozenset[str], frozenset[str]]:
    """Add adapters, if any; returns the names of tensors that never change, and of trained ones that stay local."""
    stays = frozenset[str]()
    if not config.fixed:
        return frozenset(), stays
    names = {f"body.{name}" for name in body.state_dict()}
    if config.adapters:
        body.eval()
        is_timm = config.kind == "timm"
        named = layers.called_linears(body, torch.zeros(1, 3, *size)) if is_timm else layers.linears(body)
        if not named:
            raise ValueError(f"encoder {config.title!r}: expected linear layers for adapters, got none")
        added = {f"body.{name}" for name in layers.add_adapters(body, named, config.adapters)}
        body.train()
        if config.adapters.train == "up":
            names |= {name for name in added if name.endswith(".down")}
        if config.adapters.share == "down":
            stays = frozenset(name for name in added if name.endswith(".up"))
    return frozenset(names), stays


@cache
def _backbone(requested: str, output_stride: int) -> tuple[str, Sequence[int], int, bool, dict[str, Any]]:
    """Find out how to build a timm backbone by building it on the meta device.

    Returns its name, which of its maps are used, the patch of a plain transformer (0 for others), whether it has
    stochastic depth, and its options.
    """
    name = SWIN_T if requested in SMALL else requested
    options: dict[str, Any] = {"output_stride": output_stride} if output_stride != STRIDES[-1] else {}
    if name == SWIN_T and not options:  # known, and building it takes a while
        return name, range(len(STRIDES)), 0, True, options
    if ":" not in name and not timm.is_model(name):
        close = get_close_matches(name, [*SMALL, *timm.list_models()], n=1)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        raise ValueError(f"unknown encoder {requested!r}. {hint}timm.list_models() lists them")
    strides, drops = _strides(name, options)
    if len(set(strides)) == 1 and not options:
        options = {"dynamic_img_size": True, "dynamic_img_pad": True}
        _strides(name, options)
        return name, [-1], strides[0], drops, options
    if strides[-4:] != [min(stride, output_stride) for stride in STRIDES]:
        expected = "feature maps at strides 4, 8, 16 and 32, or at a single one"
        raise ValueError(f"encoder {requested!r}: expected {expected}, got {strides}")
    return name, range(len(strides) - 4, len(strides)), 0, drops, options


def _strides(name: str, options: Mapping[str, Any]) -> tuple[list[int], bool]:
    """The strides of a timm backbone with these options, and whether it has stochastic depth."""
    with explain_errors(f"encoder {name!r}", "expected a backbone with feature maps"), torch.device("meta"):
        try:
            body = timm.create_model(name, features_only=True, drop_path_rate=0.0, **options)
            return _feature_info(body).reduction(), True
        except TypeError as error:
            if "drop_path_rate" not in str(error):
                raise
            return _feature_info(timm.create_model(name, features_only=True, **options)).reduction(), False


def _feature_info(body: nn.Module) -> Any:
    return body.feature_info
