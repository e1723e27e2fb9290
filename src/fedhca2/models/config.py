"""Settings of a model."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedhca2.config import Config

SWIN_T = "swin_tiny_patch4_window7_224"


class Lora(Config):
    """Low-rank adapters beside the linear layers of a frozen backbone: W·x + (α/r)·B·A·x."""

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Field(ge=1, description="r, the width of the adapters")] = 8
    alpha: Annotated[float, Field(gt=0, description="α; adapters are scaled by α/r")] = 8.0


class EncoderConfig(Config):
    """The backbone and its initial weights."""

    name: Annotated[str, Field(description="a timm model, or swin_micro or swin_mini for runs on a CPU")] = SWIN_T
    weights: Annotated[
        str,
        Field(description="'none' for random values, 'scenes' for embedded weights, 'timm' for timm's own, or a file"),
    ] = "none"
    sha256: Annotated[str | None, Field(description="of the file; a run records it and accepts no other")] = None
    drop_path: Annotated[
        float, Field(ge=0, lt=1, description="stochastic depth: rates rise from 0 to this rate in the last block")
    ] = 0.0
    output_stride: Annotated[
        Literal[8, 16, 32],
        Field(description="stride of the coarsest map; below 32 only if the encoder can be dilated"),
    ] = 32
    frozen: Annotated[
        bool, Field(description="the backbone keeps its initial weights; what lies between it and decoders trains")
    ] = False
    adapters: Annotated[
        Lora | None, Field(description="trained and exchanged instead of the backbone, which is frozen")
    ] = None

    @property
    def fixed(self) -> bool:
        """Whether the backbone keeps its initial weights."""
        return self.frozen or self.adapters is not None

    @model_validator(mode="after")
    def _a_fixed_backbone_drops_nothing(self) -> "EncoderConfig":
        if self.fixed and self.drop_path:
            raise ValueError(f"drop_path should be 0 if the backbone is frozen, found {self.drop_path:g}")
        return self


class ModelConfig(Config):
    """The encoder, and the decoders for it."""

    encoder: EncoderConfig = EncoderConfig()
    feature_width: Annotated[
        int | None,
        Field(
            ge=1,
            description="width that every encoder projects its maps to, so that clients with different encoders "
            "exchange decoders; by default maps keep their widths",
        ),
    ] = None
    decoder: Annotated[Literal["fcn", "deeplab"], Field(description="FedHCA²'s decoder, or MaT-FL's")] = "fcn"
    decoder_width: Annotated[
        int | None,
        Field(ge=4, multiple_of=4, description="by default the width of the encoder's first map, or 256 for deeplab"),
    ] = None

    @property
    def blank(self) -> "ModelConfig":
        """The same model without initial weights, so that no file is needed."""
        return self.model_copy(update={"encoder": self.encoder.model_copy(update={"weights": "none", "sha256": None})})
