"""What all label maps have in common."""

IGNORE = 255  # a pixel that counts neither in a loss nor in a metric
