"""Images and labels as the network gets them: changed at random for training, normalised and padded for evaluation."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.augmentation import (
    Choices,
    InputFormat,
    Preparation,
    distort,
    for_evaluation,
    from_hsv,
    pack,
)
from fedhca2.data.transforms import IMAGE_DEVIATION, IMAGE_MEAN
from fedhca2.tasks import TASKS

CLASSES = 5
SIZES = [(40, 56), (64, 48), (64, 64), (17, 61)]
TASK_LISTS = [("semseg",), ("normals", "depth"), tuple(TASKS)]
PLAIN = Choices.none(1)


def draw(seed, count, **options):
    return Choices.draw(np.random.default_rng(seed), count, **options)


def prepare(samples, size, choices):
    return Preparation()(pack(samples, choices, size), InputFormat(TASKS, size, CLASSES))


def alone(one, size, **changes):
    """Prepare one sample with these choices and nothing else random."""
    prepared = prepare([one], size, PLAIN._replace(**{name: torch.tensor([value]) for name, value in changes.items()}))
    return {name: value[0] for name, value in prepared.items()}


def sample(rng, height=8, width=8, **labels):
    return {"image": torch.randint(0, 256, (3, height, width), generator=rng, dtype=torch.uint8), **labels}


def blocks(rng, size, classes):
    """A map of large patches, so that crops with only one class are common."""
    coarse = torch.from_numpy(rng.integers(0, classes, (1, 3, 3)).astype(np.uint8))
    return torch.nn.functional.interpolate(coarse[None].float(), size=size).to(torch.uint8)[0]


def make_sample(rng, size, tasks):
    def noise(channels):
        return torch.from_numpy(rng.standard_normal((channels, *size)).astype(np.float32))

    labels = {
        "semseg": blocks(rng, size, CLASSES),
        "human_parts": blocks(rng, size, 2),
        "sal": blocks(rng, size, 2),
        "normals": torch.nn.functional.normalize(noise(3), dim=0) * (noise(1) > -1),
        "edge": (noise(1) > 1).float(),
        "depth": noise(1).abs() * (noise(1) > -1),
        "keypoints": noise(2).clamp(0, 1),
        **{name: noise(1).flatten()[:3] for name in ("classification", "multilabel", "regression")},
    }
    image = torch.from_numpy(rng.integers(0, 256, (3, *size), dtype=np.uint8))
    return {"image": image, **{task: labels[task] for task in tasks}}


@pytest.mark.parametrize("tasks", TASK_LISTS)
@pytest.mark.parametrize("size", [(64, 64), (32, 96)])
def test_a_sample_is_prepared_in_a_batch_as_by_itself(tasks, size):
    rng = np.random.default_rng(0)
    samples = [make_sample(rng, each, tasks) for each in SIZES]
    choices = draw(0, len(samples))
    each = [prepare([one], size, choices.map(lambda values, i=i: values[i : i + 1])) for i, one in enumerate(samples)]
    expected = {name: torch.cat([one[name] for one in each]) for name in samples[0]}
    assert_close(prepare(samples, size, choices), expected, rtol=0, atol=0)


def test_an_image_to_evaluate_is_normalised_and_padded_with_zeros_on_all_sides(rng):
    one = sample(rng, 4, 6)
    image = for_evaluation(one, (8, 8))["image"]
    inside = image[:, 2:6, 1:7]
    assert_close(inside * IMAGE_DEVIATION + IMAGE_MEAN, one["image"].float(), atol=1e-3, rtol=0)
    inside.zero_()
    assert not image.any()
    with pytest.raises(ValueError, match="at most 8×8"):
        for_evaluation(sample(rng, 9, 8), (8, 8))


@pytest.mark.parametrize(
    ("task", "channels", "unknown"),
    [("semseg", 1, 0), ("human_parts", 1, 0), ("sal", 1, 0), ("edge", 1, 0), ("normals", 3, 1), ("depth", 1, 1)],
)
def test_padding_and_unknown_values_are_ignored(rng, task, channels, unknown):
    label = torch.ones(channels, 4, 4)
    label[:, 0, :unknown] = 0
    padded = for_evaluation(sample(rng, 4, 4, **{task: label}), (8, 8))[task]
    assert (padded == 255).sum() == (48 + unknown) * channels


@pytest.mark.parametrize("size", [(32, 96), (20, 30)])
def test_of_an_enlarged_image_the_first_varied_crop_is_taken_too(size):
    rng, later = np.random.default_rng(1), 0
    for _ in range(20):
        one, tries = make_sample(rng, (64, 64), ("semseg",)), rng.random((10, 2)).tolist()
        crops = [alone(one, size, scale=4.0, crops=[each])["semseg"] for each in tries]
        counts = [torch.bincount(crop[crop != 255].long()) for crop in crops]
        varied = [(each > 0).sum() > 1 and each.max() < 0.75 * each.sum() for each in counts]
        first = varied[:-1].index(True) if any(varied[:-1]) else -1
        assert alone(one, size, scale=4.0, crops=tries)["semseg"].equal(crops[first])
        later += first != 0
    assert 0 < later < 20


CHANGED = {  # a task, its label, what is done, and the label after that
    "enlarging brings things nearer": ("depth", torch.full((1, 8, 8), 3.0), {"scale": 1.5}, lambda depth: depth / 1.5),
    "mirroring negates x of normals": (
        "normals",
        torch.nn.functional.normalize(torch.arange(1.0, 193).view(3, 8, 8), dim=0),
        {"mirrored": True},
        lambda normals: normals.flip(-1) * torch.tensor([-1.0, 1.0, 1.0]).view(3, 1, 1),
    ),
    "mirroring mirrors labels": (
        "semseg",
        torch.arange(64, dtype=torch.uint8).view(1, 8, 8),
        {"mirrored": True},
        lambda classes: classes.flip(-1),
    ),
}


@pytest.mark.parametrize(("task", "label", "changes", "expected"), CHANGED.values(), ids=CHANGED)
def test_labels_change_with_their_image(rng, task, label, changes, expected):
    assert_close(alone(sample(rng, **{task: label}), (8, 8), **changes)[task], expected(label))


def test_a_smaller_image_is_not_cropped(rng):
    result = alone(sample(rng, semseg=torch.ones(1, 8, 8, dtype=torch.uint8)), (8, 8), scale=0.5)
    assert (result["semseg"] == 1).sum() == 16


@pytest.mark.parametrize(
    ("ones", "ignored", "varied"),
    [(0, 0, False), (1, 0, False), (5, 0, True), (8, 0, True), (12, 0, False), (2, 14, False)],
)
def test_the_first_varied_crop_is_taken(rng, ones, ignored, varied):
    """A crop is varied if no class is on three quarters of it or more; ignored pixels do not count."""
    label = torch.zeros(1, 8, 8, dtype=torch.uint8)
    label[0, :4, :4] = torch.tensor([1] * ones + [255] * ignored + [0] * (16 - ones - ignored)).view(4, 4)  # first try
    label[0, 4:, 4:] = 2
    crop = alone(sample(rng, semseg=label), (4, 4), crops=[[0.0, 0.0], [0.99, 0.99]])["semseg"]
    assert (2 in crop) != varied


def test_choices_fill_their_ranges():
    choices = draw(0, 4000, scales=(0.75, 1.25))
    assert choices.scale.aminmax() == pytest.approx((0.75, 1.25), abs=1e-3)
    assert choices.crops.aminmax() == pytest.approx((0.0, 1.0), abs=1e-3)
    assert float(choices.mirrored.double().mean()) == pytest.approx(0.5, abs=0.05)
    brightness, before, saturation, hue, after = choices.distortion.T
    assert brightness.aminmax() == pytest.approx((-32.0, 32.0), abs=0.1)
    for factor in (before, saturation, after):
        assert factor.aminmax() == pytest.approx((0.5, 1.5), abs=0.01)
    assert set(hue.tolist()) == set(range(-18, 18))
    unchanged = [
        (values == value).double().mean() for values, value in zip(choices.distortion.T, (0, 1, 1, 0, 1), strict=True)
    ]
    assert unchanged == pytest.approx([0.5, 0.75, 0.5, 0.5 + 0.5 / 36, 0.75], abs=0.05)
    assert ((before == 1) | (after == 1)).all()


@pytest.mark.parametrize("choices", [PLAIN, draw(0, 1)], ids=["evaluation", "training"])
def test_a_sample_is_left_as_it_was(rng, choices):
    one = sample(rng, normals=torch.rand(3, 8, 8, generator=rng))
    before = {name: value.clone() for name, value in one.items()}
    for value in prepare([one], (8, 8), choices).values():
        value.fill_(7)
    assert_close(one, before, rtol=0, atol=0)


@pytest.mark.parametrize("size", [(1, 1), (1, 64), (64, 1)])
def test_an_image_of_one_pixel_can_be_trained_on(size):
    one = {"image": torch.zeros(3, *size, dtype=torch.uint8), "semseg": torch.zeros(1, *size, dtype=torch.uint8)}
    assert prepare([one], (32, 32), draw(0, 1))["image"].shape == (1, 3, 32, 32)


# Colours.
def test_colours_are_rounded_down_as_whole_numbers_are():
    levels = torch.arange(0, 256, 15)
    hue, saturation, value = torch.meshgrid(torch.arange(-48, 180), levels, levels, indexing="ij")
    actual = from_hsv(*(each.float()[:, None] for each in (hue, saturation, value)))
    apart = (hue[:, None] - torch.tensor([0, 60, 120]).view(3, 1, 1)).abs()
    lost = (torch.minimum(apart, 180 - apart) - 30).clamp(0, 30)
    expected = value[:, None] * (255 * 30 - saturation[:, None] * lost) // (255 * 30)
    assert_close(actual, expected.float(), rtol=0, atol=0)


def test_grey_has_no_colour_to_change_and_fractions_of_a_level_are_cut_off():
    grey = torch.arange(100.0).view(1, 10, 10).expand(3, -1, -1)
    assert_close(distort(grey, saturation=1.5, hue=17), grey, rtol=0, atol=0)
    assert_close(distort(grey + 0.99, contrast_after=1.5), (grey * 1.5).floor(), rtol=0, atol=0)
