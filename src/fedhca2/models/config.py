"""What a model is made of, as a config says it."""

from typing import Annotated

from pydantic import Field

from fedhca2.config import Config

SWIN_T = "swin_tiny_patch4_window7_224"


class EncoderConfig(Config):
    """Which backbone, and what its values are at the start."""

    name: Annotated[str, Field(description="a timm model, or swin_micro or swin_mini for runs on a CPU")] = SWIN_T
    weights: Annotated[
        str, Field(description="'none' for random values, 'scenes' for the embedded ones, or a file")
    ] = "none"
    drop_path: Annotated[float, Field(ge=0, lt=1, description="stochastic depth")] = 0.0


class ModelConfig(Config):
    """The encoder, and the decoders that go with it."""

    encoder: EncoderConfig = EncoderConfig()
    decoder_width: Annotated[
        int | None,
        Field(ge=4, multiple_of=4, description="by default the encoder's first channels"),
    ] = None
