"""The encoder against the maps of the released Swin transformer."""

import pytest
import torch

from fedhca2.models import Encoder
from fedhca2.models.fast import use_fast_layers
from released_swin import SIZES, assert_released, image_of, released_config


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    return Encoder(released_config(tmp_path, monkeypatch), (64, 64)).eval()


@pytest.mark.parametrize("size", SIZES)
def test_maps_are_those_of_the_released_code(encoder, size):
    with torch.inference_mode():
        assert_released(encoder(image_of(size)), size)


@pytest.mark.parametrize("size", SIZES)
def test_maps_are_the_same_with_attention_for_a_gpu(encoder, size):
    use_fast_layers(encoder, compile=True)
    with torch.inference_mode():
        assert_released(encoder(image_of(size)), size)
