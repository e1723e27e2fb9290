"""Layers: Swin's released block, feature maps between encoder and decoders, dropout with given draws, adapters."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from math import prod, sqrt

import numpy as np
import torch
from timm.layers.drop import DropPath
from timm.models.swin_transformer import SwinTransformerBlock, window_partition, window_reverse
from torch import Tensor, nn
from torch.nn import functional

from fedhca2.compiling import constant
from fedhca2.models.config import Lora

Size = tuple[int, int]
STRIDES = [4, 8, 16, 32]  # of the feature maps
DRAWS = 2**24  # numbers that a float32 holds exactly


class ReleasedBlock(SwinTransformerBlock):
    """timm's block as mmseg computes it: a map is padded to whole windows before it is rolled.

    timm rolls first, which gives different results if a map is not a multiple of the window.
    """

    def _attn(self, x: Tensor) -> Tensor:
        _, height, width, channels = x.shape
        window, shift = self.window_size, self.shift_size
        missing = (-height % window[0], -width % window[1])
        if any(missing):
            x = functional.pad(x, (0, 0, 0, missing[1], 0, missing[0]))
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


@constant
def roll_mask(size: Size, window: Size, shift: Size, device: torch.device) -> Tensor:
    """What to add to the scores [windows, places, places] of a map of this size that was rolled up and left.

    >>> roll_mask((2, 2), (2, 2), (1, 0), torch.device("cpu"))
    tensor([[[   0.,    0., -100., -100.],
             [   0.,    0., -100., -100.],
             [-100., -100.,    0.,    0.],
             [-100., -100.,    0.,    0.]]])
    """
    below, right = (torch.arange(n, device=device) >= n - s for n, s in zip(size, shift, strict=True))
    corner = 2 * below[:, None] + right  # which of the map's four corners a position came from
    corner = window_partition(corner[None, ..., None], window).view(-1, window[0] * window[1])
    return torch.where(
        corner[:, :, None] == corner[:, None], 0.0, -100.0
    )  # a low score where only the roll brought them together


@constant
def interpolation(
    length: int, target: int, device: torch.device, dtype: torch.dtype = torch.float32, step: float | None = None
) -> Tensor:
    """The matrix [target, length] of linear interpolation between pixel centres, `step` apart.

    >>> interpolation(2, 4, torch.device("cpu"))
    tensor([[1.0000, 0.0000],
            [0.7500, 0.2500],
            [0.2500, 0.7500],
            [0.0000, 1.0000]])
    """
    centres = (torch.arange(target, device=device) + 0.5) * (step or length / target) - 0.5
    distance = centres.clamp(0, length - 1)[:, None] - torch.arange(length, device=device)
    return (1 - distance.abs()).clamp(min=0).to(dtype)


def resample(maps: Tensor, size: Sequence[int], step: float | None = None) -> Tensor:
    """Bilinear interpolation to `size` as two matrix products, so that its gradient needs no scattered sums.

    The weights are exact in bfloat16 if the scale is a power of two.
    """
    batch, channels, height, width = maps.shape
    sides = zip((height, width), size, strict=True)
    rows, columns = (interpolation(*each, maps.device, maps.dtype, step) for each in sides)
    tall = rows @ maps.permute(0, 2, 3, 1).reshape(batch, height, width * channels)
    full = columns @ tall.view(-1, width, channels)
    return full.view(batch, *size, channels).permute(0, 3, 1, 2)


class FeatureNorms(nn.ModuleList):
    """A LayerNorm on each map of a channels-last backbone; the result has channels second."""

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Convert [B, H, W, C] to normalised maps [B, C, H, W]."""
        return [norm(feature).permute(0, 3, 1, 2) for norm, feature in zip(self, features, strict=True)]


class Projections(nn.ModuleList):
    """Maps of any widths, projected to a common width and normalised, so that any decoder of that width fits."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__(
            nn.Sequential(nn.Conv2d(count, width, kernel_size=1), nn.GroupNorm(1, width)) for count in channels
        )

    def forward(self, features: Sequence[Tensor]) -> list[Tensor]:
        """Project every map."""
        return [project(feature) for project, feature in zip(self, features, strict=True)]


class FeaturePyramid(nn.Module):
    """Maps at strides 4, 8, 16 and 32 from the single map of a plain transformer, as in ViTDet (Li et al. 2022).

    Each is the map projected, resampled, and convolved. Resampling follows pixel positions, so patches of any size
    work, and patches beyond the image's edge have no effect inside.
    """

    def __init__(self, channels: int, width: int, patch: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(channels)
        self.projections = nn.ModuleList(nn.Conv2d(channels, width, kernel_size=1) for _ in STRIDES)
        self.convolutions = nn.ModuleList(
            nn.Sequential(nn.Conv2d(width, width, kernel_size=3, padding=1), nn.GroupNorm(1, width)) for _ in STRIDES
        )
        self.patch = patch

    def forward(self, feature: Tensor, size: torch.Size) -> list[Tensor]:
        """Four maps of images of this size, from the map [B, C, H, W] of their patches."""
        normal = self.norm(feature.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        maps = []
        for stride, project, convolve in zip(STRIDES, self.projections, self.convolutions, strict=True):
            target = [-(-side // stride) for side in size]
            maps.append(convolve(resample(project(normal), target, stride / self.patch)))
        return maps


class GivenDropPath(DropPath):
    """A residual path with stochastic depth: in training, it is dropped for some images of a batch.

    timm draws these from PyTorch's global generator, which clients in threads share. Here the draws are passed in:
    which images keep the path, and with which factor.
    """

    keep: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Scale the path's values image by image in training."""
        if not self.training:
            return x
        if self.keep is None:
            raise RuntimeError("stochastic depth: expected draws in training, set by `dropping`, got none")
        return x * self.keep.view(-1, *[1] * (x.ndim - 1))


def take_over_drop_paths(body: nn.Module) -> list[GivenDropPath]:
    """All droppable paths of a timm backbone; from now on they draw nothing themselves."""
    for module in body.modules():
        if type(module) is DropPath and module.drop_prob:
            module.__class__ = GivenDropPath
    return [module for module in body.modules() if isinstance(module, GivenDropPath)]


class GivenDropout(nn.Module):
    """Dropout of single values in training. Like stochastic depth, it is given its draws: one number per image.

    A value is kept or not by a hash of its image's number and its position, so that results depend neither on
    threads nor on the device.
    """

    keep: Tensor | None = None

    def __init__(self, rate: float) -> None:
        super().__init__()
        self.drop_prob = rate

    def forward(self, x: Tensor) -> Tensor:
        """Set a share of the values to 0 in training, and scale the others up."""
        if not self.training:
            return x
        if self.keep is None:
            raise RuntimeError("dropout: expected draws in training, set by `dropping`, got none")
        positions = torch.arange(x[0].numel(), device=x.device)
        bits = self.keep.long()[:, None] * 2**31 + positions  # at most 2**55: different for every value
        for _ in range(2):
            bits = (bits ^ (bits >> 29)) * 0x2545F4914F6CDD1D  # the multiplication wraps around
        uniform = ((bits >> 40) & (DRAWS - 1)).view_as(x)
        return x * (uniform >= self.drop_prob * DRAWS) / (1 - self.drop_prob)


def draw_keep(
    layers: Sequence[GivenDropPath | GivenDropout], steps: int, images: int, dice: np.random.Generator
) -> Tensor:
    """Draws [steps, layers, images].

    For a path, a factor: 0 with the probability of its rate, otherwise 1 / (1 − rate). For a dropout, a whole number.
    """
    uniform = dice.random((steps, len(layers), images))
    keep_rates = 1 - np.array([[layer.drop_prob] for layer in layers])
    whole = np.array([[isinstance(layer, GivenDropout)] for layer in layers])
    return torch.from_numpy(np.float32(np.where(whole, np.floor(uniform * DRAWS), (uniform < keep_rates) / keep_rates)))


@contextmanager
def dropping(layers: Sequence[GivenDropPath | GivenDropout], keep: Tensor | None) -> Iterator[None]:
    """Use the draws of `draw_keep` for one step; None if a model has no such layers."""
    if keep is None:
        yield
        return
    for layer, draws in zip(layers, keep, strict=True):
        layer.keep = draws
    try:
        yield
    finally:
        for layer in layers:
            layer.keep = None


class LoraLinear(nn.Linear):
    """A frozen linear layer with a low-rank adapter (Hu et al. 2022), which is 0 at first: W·x + (α/r)·B·A·x."""

    down: nn.Parameter
    up: nn.Parameter
    scale: float

    def forward(self, input: Tensor) -> Tensor:
        """Apply both."""
        low = functional.linear(functional.linear(input, self.down), self.up)
        return functional.linear(input, self.weight, self.bias) + self.scale * low

    def extra_repr(self) -> str:
        """Describe the layer."""
        return f"{super().extra_repr()}, rank={len(self.down)}, scale={self.scale:g}"


def add_adapters(body: nn.Module, names: Iterable[str], config: Lora) -> set[str]:
    """Give these linear layers adapters, in place; returns the names of the new parameters."""
    added = set()
    for name in names:
        layer = body.get_submodule(name)
        layer.__class__ = LoraLinear
        assert isinstance(layer, LoraLinear)
        down = torch.empty(config.rank, layer.in_features)
        nn.init.kaiming_uniform_(down, a=sqrt(5))
        layer.down = nn.Parameter(down)
        layer.up = nn.Parameter(torch.zeros(layer.out_features, config.rank))
        layer.scale = config.alpha / config.rank
        added |= {f"{name}.down", f"{name}.up"}
    return added


def linears(body: nn.Module) -> list[str]:
    """The names of all linear layers."""
    return [name for name, module in body.named_modules() if type(module) is nn.Linear]


@torch.no_grad()
def called_linears(body: nn.Module, image: Tensor) -> list[str]:
    """The linear layers that a forward pass calls; some backbones have others, or use weights without calling them."""
    called: dict[str, None] = {}
    hooks = [
        body.get_submodule(name).register_forward_pre_hook(lambda *_, name=name: called.setdefault(name))
        for name in linears(body)
    ]
    body(image)
    for hook in hooks:
        hook.remove()
    return list(called)


class Mlp(nn.Module):
    """Linear layers, each with a ReLU; arrays of any shape are flattened. Gives one list entry, [B, last width].

    >>> Mlp((2, 3), (8, 4)).channels
    [4]
    """

    def __init__(self, shape: Sequence[int], widths: Sequence[int] = (256, 128)) -> None:
        super().__init__()
        layers = [(nn.Linear(*each), nn.ReLU()) for each in pairwise((prod(shape), *widths))]
        self.layers = nn.Sequential(nn.Flatten(), *(module for layer in layers for module in layer))
        self.channels = [widths[-1]]

    def forward(self, arrays: Tensor) -> list[Tensor]:
        """Compute the features."""
        return [self.layers(arrays)]


class VectorDecoder(nn.Module):
    """A hidden layer of a task: the last features to [B, width]."""

    def __init__(self, channels: Sequence[int], width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(channels[-1], width)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Compute a task's features."""
        decoded: Tensor = self.hidden(features[-1]).relu()
        return decoded
