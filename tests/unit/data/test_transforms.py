from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.transforms import (
    IMAGE_DEVIATION,
    IMAGE_MEAN,
    Augmentation,
    draw_augmentation,
    for_evaluation,
    for_training,
    is_varied,
)

PLAIN = Augmentation(scale=1.0, crops=((0.0, 0.0),), mirrored=False, distortion=None)


def sample(rng, height=8, width=8, **labels):
    return {"image": torch.randint(0, 256, (3, height, width), generator=rng, dtype=torch.uint8), **labels}


def unit_normals(rng, height=8, width=8):
    return torch.nn.functional.normalize(torch.randn(3, height, width, generator=rng), dim=0)


@pytest.mark.parametrize("size", [(8, 8), (8, 10), (12, 12)])
def test_nothing_random_is_evaluation(rng, size):
    depth = torch.rand(1, 8, 8, generator=rng) + 1
    depth[0, 0] = 0
    one = sample(rng, depth=depth, human_parts=torch.zeros(1, 8, 8, dtype=torch.uint8), normals=unit_normals(rng))
    assert_close(for_training(one, size, PLAIN), for_evaluation(one, size), rtol=0, atol=0)


@pytest.mark.parametrize("size", [(8, 8), (12, 12)])
def test_evaluation_leaves_a_sample_as_it_was(rng, size):
    one = sample(rng, depth=torch.zeros(1, 8, 8), human_parts=torch.zeros(1, 8, 8, dtype=torch.uint8))
    one["image"] = one["image"].float()
    before = {name: value.clone() for name, value in one.items()}
    prepared = for_evaluation(one, size)
    for value in prepared.values():
        value.fill_(7)
    assert_close(one, before, rtol=0, atol=0)


def test_an_image_is_normalised(rng):
    one = sample(rng)
    image = for_evaluation(one, (8, 8))["image"] * IMAGE_DEVIATION + IMAGE_MEAN
    assert_close(image, one["image"].float(), atol=1e-3, rtol=0)


def test_padding_is_centred_and_zero(rng):
    image = for_evaluation(sample(rng, 4, 6), (8, 8))["image"]
    image[:, 2:6, 1:7] = 0
    assert not image.any()


@pytest.mark.parametrize("task", ["semseg", "human_parts", "sal", "edge"])
def test_padding_is_ignored_in_class_labels(rng, task):
    label = torch.ones(1, 4, 4, dtype=torch.float32 if task == "edge" else torch.uint8)
    padded = for_evaluation(sample(rng, 4, 4, **{task: label}), (8, 8))[task]
    assert (padded == 255).sum() == 48


@pytest.mark.parametrize("task", ["normals", "depth"])
def test_padding_and_unknown_values_are_ignored_in_maps(rng, task):
    label = torch.ones(3 if task == "normals" else 1, 4, 4)
    label[:, 0, 0] = 0
    padded = for_evaluation(sample(rng, 4, 4, **{task: label}), (8, 8))[task]
    assert (padded == 255).sum() == 49 * len(label)


def test_a_map_without_parts_is_ignored(rng):
    label = for_evaluation(sample(rng, human_parts=torch.zeros(1, 8, 8, dtype=torch.uint8)), (8, 8))["human_parts"]
    assert (label == 255).all()


def test_enlarging_brings_things_nearer(rng):
    depth = torch.full((1, 8, 8), 3.0)
    enlarged = for_training(sample(rng, depth=depth), (8, 8), replace(PLAIN, scale=1.5))["depth"]
    assert_close(enlarged, torch.full((1, 8, 8), 2.0))


def test_mirroring_negates_x_of_normals(rng):
    normals = unit_normals(rng)
    mirrored = for_training(sample(rng, normals=normals), (8, 8), replace(PLAIN, mirrored=True))["normals"]
    assert_close(mirrored, normals.flip(-1) * torch.tensor([-1.0, 1.0, 1.0]).view(3, 1, 1))


def test_mirroring_the_image_mirrors_the_labels(rng):
    label = torch.randint(0, 5, (1, 8, 8), generator=rng, dtype=torch.uint8)
    result = for_training(sample(rng, semseg=label), (8, 8), replace(PLAIN, mirrored=True))
    assert_close(result["semseg"], label.flip(-1))


def test_labels_are_never_mixed_when_scaled(rng):
    label = torch.where(torch.rand(1, 8, 8, generator=rng) > 0.5, 3, 7).to(torch.uint8)
    scaled = for_training(sample(rng, semseg=label), (8, 8), replace(PLAIN, scale=1.7))["semseg"]
    assert set(scaled.unique().tolist()) <= {3, 7, 255}


def test_an_enlarged_image_is_interpolated_linearly():
    ramp = torch.arange(8, dtype=torch.uint8).mul(10).expand(3, 8, 8)
    image = for_training({"image": ramp}, (16, 16), replace(PLAIN, scale=2.0))["image"] * IMAGE_DEVIATION + IMAGE_MEAN
    expected = torch.nn.functional.interpolate(ramp[None].float(), scale_factor=2, mode="bilinear", align_corners=False)
    assert_close(image, expected[0], atol=1e-3, rtol=1e-4)


def test_a_smaller_image_is_kept_whole(rng):
    result = for_training(sample(rng, semseg=torch.ones(1, 8, 8, dtype=torch.uint8)), (8, 8), replace(PLAIN, scale=0.5))
    assert (result["semseg"] == 1).sum() == 16


def test_the_first_varied_crop_is_taken(rng):
    label = torch.zeros(1, 8, 8, dtype=torch.uint8)
    label[..., 4:, 6:] = 1  # only a crop at the lower right shows both classes
    crops = ((0.0, 0.0), (0.99, 0.99))
    result = for_training(sample(rng, semseg=label), (4, 4), replace(PLAIN, crops=crops))
    assert set(result["semseg"].unique().tolist()) == {0, 1}


@pytest.mark.parametrize(("ones", "varied"), [(0, False), (1, False), (5, True), (8, True), (12, False)])
def test_a_varied_crop_has_no_class_on_three_quarters(ones, varied):
    label = torch.zeros(16, dtype=torch.uint8)
    label[:ones] = 1
    assert is_varied(label.view(1, 4, 4)) == varied


def test_ignored_pixels_do_not_make_a_crop_varied():
    label = torch.full((1, 4, 4), 255, dtype=torch.uint8)
    label[0, 0, :2] = 3
    assert not is_varied(label)


def test_an_augmentation_depends_on_all_that_it_is_drawn_for():
    drawn = {
        draw_augmentation(*purpose)
        for purpose in [(0, "a", 0, 0), (1, "a", 0, 0), (0, "b", 0, 0), (0, "a", 1, 0), (0, "a", 0, 1)]
    }
    assert len(drawn) == 5


def test_scales_fill_their_range():
    scales = [draw_augmentation(0, "a", 0, i).scale for i in range(200)]
    assert (0.5 <= min(scales) < 0.6, 1.9 < max(scales) < 2.0) == (True, True)


def test_a_sample_is_left_as_it_was(rng):
    one = sample(rng, normals=unit_normals(rng))
    before = {name: value.clone() for name, value in one.items()}
    for_training(one, (8, 8), draw_augmentation(0, "a", 0, 0))
    assert_close(one, before, rtol=0, atol=0)


def test_an_image_that_does_not_fit_is_refused(rng):
    with pytest.raises(ValueError, match="at most 8×8"):
        for_evaluation(sample(rng, 9, 8), (8, 8))
