"""The constant shared by all label maps."""

IGNORE = 255  # a pixel that is ignored by losses and metrics
