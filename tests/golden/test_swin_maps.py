"""The encoder against the maps of the released Swin transformer."""

import pytest
import torch

from fedhca2.models import Encoder
from fedhca2.models.fast import use_fast_layers
from released_swin import SIZES, assert_released, image_of, released_config


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("fast", [False, True], ids=["plain", "with attention for a GPU"])
def test_maps_are_those_of_the_released_code(tmp_path, monkeypatch, size, fast):
    encoder = Encoder(released_config(tmp_path, monkeypatch), (64, 64)).eval()
    if fast:
        use_fast_layers(encoder, compile=True)
    with torch.inference_mode():
        assert_released(encoder(image_of(size)), size)
