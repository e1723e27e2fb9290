"""Encoders: any timm backbone with four feature maps at strides 4, 8, 16 and 32."""

from typing import Any

import timm
import torch
from torch import Tensor, nn

from fedhca2.models.config import SWIN_T, EncoderConfig
from fedhca2.models.pretrained import load_weights

STRIDES = [4, 8, 16, 32]

# Small Swin transformers that timm has no name for: they train in minutes on a CPU. Windows are never cut to the size
# of a map, so that the parameters fit images of every size.
SMALL: dict[str, dict[str, Any]] = {
    "swin_micro": {"embed_dim": 16, "depths": (1, 1, 2, 1), "num_heads": (1, 2, 4, 8)},
    "swin_mini": {"embed_dim": 32, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 4, 8)},
}
SMALL_WINDOWS = {"window_size": 4, "always_partition": True}


class Encoder(nn.Module):
    """A timm backbone that gives four feature maps [B, C, H, W].

    Backbones that keep channels last get a LayerNorm on each map, as the papers' Swin has.
    """

    def __init__(self, config: EncoderConfig, size: tuple[int, int]) -> None:
        super().__init__()
        small = config.name in SMALL
        options = {**SMALL[config.name], **SMALL_WINDOWS} if small else {}
        options |= {"drop_path_rate": config.drop_path, "features_only": True}
        if "swin" in config.name:
            options["img_size"] = size
        name = SWIN_T if small else config.name
        with torch.device("meta"):
            strides = _feature_info(timm.create_model(name, **options)).reduction()
        if not set(STRIDES) <= set(strides):
            raise ValueError(f"encoder {name!r} should have feature maps at strides 4, 8, 16 and 32, found {strides}")
        self.body = timm.create_model(name, out_indices=[strides.index(stride) for stride in STRIDES], **options)
        self.channels: list[int] = _feature_info(self.body).channels()
        channels_last = str(getattr(self.body, "output_fmt", "NCHW")).endswith("NHWC")
        self.norms = nn.ModuleList(nn.LayerNorm(channels) for channels in self.channels) if channels_last else None
        if config.weights != "none":
            load_weights(self, config.name, config.weights)

    def forward(self, image: Tensor) -> list[Tensor]:
        """Four maps, from fine to coarse."""
        features: list[Tensor] = self.body(image)
        if self.norms is None:
            return features
        return [norm(feature).permute(0, 3, 1, 2) for norm, feature in zip(self.norms, features, strict=True)]


def _feature_info(body: nn.Module) -> Any:
    return body.feature_info
