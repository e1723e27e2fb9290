import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN, for_evaluation


def sample(rng, height=8, width=8, **labels):
    return {"image": torch.randint(0, 256, (3, height, width), generator=rng, dtype=torch.uint8), **labels}


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


def test_an_image_that_does_not_fit_is_refused(rng):
    with pytest.raises(ValueError, match="at most 8×8"):
        for_evaluation(sample(rng, 9, 8), (8, 8))
