"""Rendered scenes: small 3-D worlds with exact labels for all six tasks, from numbers alone."""

from fedhca2.data.scenes.labels import (
    CLASSES,
    CONTEXT_IDS,
    CONTEXT_NAMES,
    LABELS,
    NAMES,
    PART_NAMES,
    Domain,
    decode_normals,
    encode_normals,
)
from fedhca2.data.scenes.rendering import render

__all__ = [
    "CLASSES",
    "CONTEXT_IDS",
    "CONTEXT_NAMES",
    "LABELS",
    "NAMES",
    "PART_NAMES",
    "Domain",
    "decode_normals",
    "encode_normals",
    "render",
]
