"""Scaling and colours against OpenCV 4.10, called as the authors' released code calls it, on noise."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.augmentation import Choices, InputFormat, Preparation, axes, distort, from_hsv, pack, to_hsv
from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN, nearest
from fedhca2.tasks import TASKS

GOLDEN = np.load(Path(__file__).parent / "data" / "opencv.npz")


def picture(key):
    """A recorded image [H, W, 3] as [3, H, W]."""
    return torch.from_numpy(GOLDEN[key]).permute(2, 0, 1)


def resized(case):
    sample = {
        "image": picture(f"resize/{case}/image"),
        "semseg": torch.from_numpy(GOLDEN[f"resize/{case}/label"])[None],
    }
    choices = Choices.none(1)._replace(scale=torch.tensor([float(GOLDEN[f"resize/{case}/scale"])], dtype=torch.double))
    size = GOLDEN[f"resize/{case}/nearest"].shape
    prepared = Preparation()(pack([sample], choices, size), InputFormat(TASKS, size))
    return {name: value[0] for name, value in prepared.items()}


@pytest.mark.parametrize("case", range(5))
def test_labels_are_scaled_to_the_nearest_neighbour_and_images_linearly(case):
    scaled = resized(case)
    assert_close(scaled["semseg"], torch.from_numpy(GOLDEN[f"resize/{case}/nearest"])[None], rtol=0, atol=0)
    image = scaled["image"] * IMAGE_DEVIATION + IMAGE_MEAN
    assert_close(image, picture(f"resize/{case}/linear"), rtol=0, atol=1e-3)


@pytest.mark.parametrize("case", range(8))
def test_long_axes_are_read_at_the_same_positions(case):
    expected = GOLDEN[f"axis/{case}/nearest"]
    length, scaled = (torch.tensor([[int(each)]]) for each in (GOLDEN[f"axis/{case}/length"], len(expected)))
    actual = axes(length, scaled, torch.zeros_like(length), len(expected), torch.zeros(1, 1, dtype=torch.bool)).nearest
    np.testing.assert_array_equal(actual[0], expected)
    np.testing.assert_array_equal(nearest(length.item(), len(expected)), expected)


def test_hue_saturation_and_value_are_the_same():
    hue, saturation, value = to_hsv(picture("hsv/image").float())
    assert_close(torch.cat([hue % 180, saturation, value]), picture("hsv/hsv").float(), rtol=0, atol=0)


def test_colours_are_the_same_but_where_floats_fall_short_of_a_whole_number():
    hue, saturation, value = picture("rgb/hsv").long().split(1)
    difference = from_hsv(hue.float(), saturation.float(), value.float()) - picture("rgb/image")
    apart = (hue - torch.tensor([0, 60, 120]).view(3, 1, 1)).abs()
    lost = value * saturation * (torch.minimum(apart, 180 - apart) - 30).clamp(0, 30)
    whole = lost % (255 * 30) == 0
    assert not difference[~whole].any()
    assert set(difference[whole].tolist()) == {0, 1}


@pytest.mark.parametrize("case", range(6))
def test_distorted_colours_are_the_same_at_98_of_100_values(case):
    actual = distort(picture("colours/image").float(), *GOLDEN[f"colours/{case}/distortion"])
    difference = (actual - picture(f"colours/{case}/distorted")).abs()
    assert difference.max() <= 2  # a level before the last contrast
    assert (difference > 0).float().mean() <= 0.02  # of a million values of such noise, at most 1.02 % differ
