"""Encoders, decoders and heads."""

from fedhca2.models.config import EncoderConfig, ModelConfig
from fedhca2.models.encoder import Encoder
from fedhca2.models.multitask import MultiTaskModel, build_model, common_model, draw_own_parts, fingerprint
