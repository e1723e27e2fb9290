import torch
from torch.testing import assert_close

from fedhca2.data.augmentation import Distortion, distort, from_hsv


def test_colours_are_rounded_down_as_whole_numbers_are():
    levels = torch.arange(0, 256, 15)
    hue, saturation, value = torch.meshgrid(torch.arange(-48, 180), levels, levels, indexing="ij")
    found = from_hsv(*(each.float()[:, None] for each in (hue, saturation, value)))
    apart = (hue[:, None] - torch.tensor([0, 60, 120]).view(3, 1, 1)).abs()
    lost = (torch.minimum(apart, 180 - apart) - 30).clamp(0, 30)
    expected = value[:, None] * (255 * 30 - saturation[:, None] * lost) // (255 * 30)
    assert_close(found, expected.float(), rtol=0, atol=0)


def test_a_grey_image_has_no_colour_to_change():
    grey = torch.arange(256.0).view(1, 16, 16).expand(3, -1, -1)
    assert_close(distort(grey, Distortion(saturation=1.5, hue=17)), grey, rtol=0, atol=0)


def test_fractions_of_a_level_are_cut_off():
    grey = torch.arange(100.0).view(1, 10, 10).expand(3, -1, -1)
    assert_close(distort(grey + 0.99, Distortion(contrast_after=1.5)), (grey * 1.5).floor(), rtol=0, atol=0)


def test_values_stay_within_8_bits(rng):
    image = 255 * torch.rand(3, 16, 16, generator=rng)
    found = distort(image, Distortion(brightness=32.0, contrast_before=1.5, saturation=1.5))
    assert (found.min() >= 0, found.max() <= 255) == (True, True)


def test_a_hue_between_red_and_yellow_has_half_the_green():
    red = torch.tensor([200.0, 0.0, 0.0]).view(3, 1, 1)
    turned = distort(red, Distortion(hue=15))
    assert_close(turned.flatten(), torch.tensor([200.0, 100.0, 0.0]))
