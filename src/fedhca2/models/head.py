"""The head of one task: two transposed convolutions back to the input's size, then the task's channels."""

from torch import nn


class Head(nn.Sequential):
    """From [B, width, H/4, W/4] to [B, channels, H, W]."""

    def __init__(self, width: int, channels: int) -> None:
        super().__init__(
            nn.ConvTranspose2d(width, width // 2, kernel_size=2, stride=2),
            nn.ConvTranspose2d(width // 2, width // 4, kernel_size=2, stride=2),
            nn.Conv2d(width // 4, channels, kernel_size=1),
        )
