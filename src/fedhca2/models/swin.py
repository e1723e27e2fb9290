"""The blocks of the released Swin transformer, on timm's parameters."""

import torch
from timm.models.swin_transformer import SwinTransformerBlock, window_partition, window_reverse
from torch import Tensor, nn
from torch.nn import functional

Size = tuple[int, int]
APART = -100.0  # added to the score of two places that only the roll brought together


class ReleasedBlock(SwinTransformerBlock):
    """timm's block as mmseg computes it: a map is padded to whole windows, and then rolled.

    timm rolls first, which is another function where a map is no multiple of the window.
    """

    def _attn(self, x: Tensor) -> Tensor:
        _, height, width, channels = x.shape
        window, shift = self.window_size, self.shift_size
        x = functional.pad(x, (0, 0, 0, -width % window[1], 0, -height % window[0]))
        size = (x.shape[1], x.shape[2])
        mask = None
        if any(shift):
            x = x.roll((-shift[0], -shift[1]), dims=(1, 2))
            mask = roll_mask(size, window, shift, x.device)
        windows = window_partition(x, window).view(-1, self.window_area, channels)
        attended = self.attn(windows, mask=mask).view(-1, *window, channels)
        x = window_reverse(attended, window, *size)
        if any(shift):
            x = x.roll(shift, dims=(1, 2))
        return x[:, :height, :width]


def roll_mask(size: Size, window: Size, shift: Size, device: torch.device) -> Tensor:
    """What is added to the scores [windows, places, places] of a map of this size that was rolled up and left.

    >>> roll_mask((2, 2), (2, 2), (1, 0), torch.device("cpu"))
    tensor([[[   0.,    0., -100., -100.],
             [   0.,    0., -100., -100.],
             [-100., -100.,    0.,    0.],
             [-100., -100.,    0.,    0.]]])
    """
    below, right = (torch.arange(n, device=device) >= n - s for n, s in zip(size, shift, strict=True))
    corner = 2 * below[:, None] + right  # from which of the map's four corners a place came
    corner = window_partition(corner[None, ..., None], window).view(-1, window[0] * window[1])
    return torch.where(corner[:, :, None] == corner[:, None], 0.0, APART)


def as_released(body: nn.Module) -> None:
    """Let a Swin transformer of timm compute what mmseg's does, in place; other backbones stay as they are."""
    blocks = [module for module in body.modules() if type(module) is SwinTransformerBlock]
    for block in blocks:
        block.__class__ = ReleasedBlock
    if blocks:
        embedding = body.get_submodule("patch_embed")
        embedding.dynamic_img_pad = True  # type: ignore[assignment]  # an image to whole patches
