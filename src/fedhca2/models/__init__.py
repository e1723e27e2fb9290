"""Encoders, decoders and heads."""

from fedhca2.models.encoder import Encoder, EncoderConfig
from fedhca2.models.multitask import MultiTaskModel, build_model, layouts

__all__ = ["Encoder", "EncoderConfig", "MultiTaskModel", "build_model", "layouts"]
