"""Swin encoders for images of any size; the released maps themselves are in tests/golden."""

import timm
import torch
from torch.nn import functional
from torch.testing import assert_close

from fedhca2.models import Encoder, EncoderConfig
from fedhca2.models.config import SWIN_T
from fedhca2.models.encoder import SMALL


def encoder(size=(64, 64)):
    torch.manual_seed(0)
    return Encoder(EncoderConfig(name="swin_mini"), size).eval()


def test_timm_has_the_same_function_where_windows_fit_several_times(rng):
    ours, theirs = encoder(), timm.create_model(SWIN_T, features_only=True, img_size=128, **SMALL["swin_mini"]).eval()
    theirs.load_state_dict(ours.body.state_dict())
    image = torch.randn(1, 3, 128, 128, generator=rng)  # maps of 32, 16, 8 and 4 positions a side, windows of 4
    same = [torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(ours.body(image), theirs(image), strict=True)]
    assert same == [True, True, True, False]


def test_an_encoder_takes_images_of_any_size_padded_to_whole_patches(rng):
    image = torch.randn(1, 3, 61, 90, generator=rng)
    padded = encoder((512, 512))(functional.pad(image, (0, 2, 0, 3)))
    assert_close(encoder((32, 32))(image), padded, rtol=0, atol=0)
    assert [tuple(map.shape[-2:]) for map in padded] == [(16, 23), (8, 12), (4, 6), (2, 3)]
