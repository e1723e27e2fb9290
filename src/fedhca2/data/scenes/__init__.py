"""Rendered scenes: small 3-D worlds with exact labels for all six tasks, from numbers alone."""
