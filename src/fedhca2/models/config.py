"""What a model is made of, as a config says it."""

from typing import Annotated, Literal

from pydantic import Field

from fedhca2.config import Config

SWIN_T = "swin_tiny_patch4_window7_224"


class EncoderConfig(Config):
    """Which backbone, and what its values are at the start."""

    name: Annotated[str, Field(description="a timm model, or swin_micro or swin_mini for runs on a CPU")] = SWIN_T
    weights: Annotated[
        str,
        Field(description="'none' for random values, 'scenes' for the embedded ones, 'timm' for timm's own, or a file"),
    ] = "none"
    sha256: Annotated[str | None, Field(description="of the file; a run notes it, and another file is an error")] = None
    drop_path: Annotated[
        float, Field(ge=0, lt=1, description="stochastic depth: the rate of the last block, to which rates rise from 0")
    ] = 0.0
    output_stride: Annotated[
        Literal[8, 16, 32], Field(description="of the coarsest map; less than 32 where the encoder can be dilated")
    ] = 32


class ModelConfig(Config):
    """The encoder, and the decoders that go with it."""

    encoder: EncoderConfig = EncoderConfig()
    decoder: Annotated[Literal["fcn", "deeplab"], Field(description="FedHCA²'s decoder, or MaT-FL's")] = "fcn"
    decoder_width: Annotated[
        int | None,
        Field(ge=4, multiple_of=4, description="by default the encoder's first channels, for deeplab 256"),
    ] = None

    @property
    def blank(self) -> "ModelConfig":
        """The same model without first weights, whose file need not be there."""
        return self.model_copy(update={"encoder": self.encoder.model_copy(update={"weights": "none", "sha256": None})})
