"""Rendered scenes: small 3-D worlds with exact labels for all six tasks, from numbers alone."""

from fedhca2.data.scenes.labels import (
    CONTEXT_IDS,
    CONTEXT_NAMES,
    LABELS,
    Domain,
    decode_normals,
    encode_normals,
)
from fedhca2.data.scenes.rendering import render

__all__ = [
    "CONTEXT_IDS",
    "CONTEXT_NAMES",
    "LABELS",
    "Domain",
    "decode_normals",
    "encode_normals",
    "render",
]
