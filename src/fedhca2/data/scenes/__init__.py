"""Rendered scenes: small 3-D worlds with exact labels for all six tasks, generated from a seed and a number."""
