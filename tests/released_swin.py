"""The released Swin transformer: a small one's weights, and its maps at sizes that are not multiples of its window.

Cut from 2.2 MB: two sizes of four, and the three finer maps of each. The weights of the last stage are zeros.
"""

from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from fedhca2.models import EncoderConfig

DATA = np.load(Path(__file__).parent / "golden" / "data" / "swin_padded.npz")
TINY = {"embed_dim": 12, "depths": (2, 2, 2, 2), "num_heads": (1, 2, 3, 6), "window_size": 7}
SIZES = ["72x104", "96x96"]  # maps of 18×26, 9×13 and 5×7 positions, and of 24×24, 12×12 and 6×6


def released_config(folder, monkeypatch):
    """An encoder that reads the weights from a file with mmseg's names."""
    monkeypatch.setattr("fedhca2.models.encoder.SMALL", {"swin_released": TINY})
    weights = {name.removeprefix("weights/"): torch.from_numpy(DATA[name]) for name in DATA if "weights/" in name}
    save_file(weights, folder / "released.safetensors")
    return EncoderConfig(name="swin_released", weights=str(folder / "released.safetensors"))


def image_of(size):
    return torch.from_numpy(DATA[f"input/{size}"]).float()


def assert_released(maps, size):
    for stage in range(3):
        expected = torch.from_numpy(DATA[f"map/{size}/{stage}"])
        assert (maps[stage].cpu() - expected).norm() <= 1e-5 * expected.norm()
