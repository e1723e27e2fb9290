"""An encoder as small as can be, `tiny` by its name in timm: four convolutions, and four paths that can be dropped."""

from itertools import pairwise

from timm.layers.drop import DropPath
from timm.models import FeatureInfo, register_model
from torch import nn
from torch.nn import functional

TINY = "tiny"
CHANNELS, STEPS = (3, 8, 8, 16, 16), (4, 2, 2, 2)


class Tiny(nn.Module):
    """Maps at strides 4, 8, 16 and 32."""

    def __init__(self, drop_path_rate=0.0, out_indices=(0, 1, 2, 3)):
        super().__init__()
        sizes = list(zip(pairwise(CHANNELS), STEPS, strict=True))
        self.steps = nn.ModuleList(nn.Conv2d(*channels, step, step) for channels, step in sizes)
        self.paths = nn.ModuleList(nn.Conv2d(channels, channels, 1) for channels in CHANNELS[1:])
        self.drops = nn.ModuleList(DropPath(drop_path_rate * i / 3) for i in range(4))
        found = [{"num_chs": c, "reduction": 4 * 2**i, "module": f"steps.{i}"} for i, c in enumerate(CHANNELS[1:])]
        self.feature_info = FeatureInfo(found, out_indices)

    def forward(self, maps):
        features = []
        for step, path, drop in zip(self.steps, self.paths, self.drops, strict=True):
            maps = step(maps)
            maps = maps + drop(path(functional.gelu(maps)))
            features.append(maps)
        return features


@register_model
def tiny(drop_path_rate=0.0, out_indices=(0, 1, 2, 3), **_):
    return Tiny(drop_path_rate, out_indices)
