"""Rendered scenes: small 3-D worlds with exact labels for all six tasks, generated from a seed and a number."""

from fedhca2.data.label_spaces import SCENE_LABELS as LABELS
from fedhca2.data.scenes.rendering import render

__all__ = ["LABELS", "render"]
