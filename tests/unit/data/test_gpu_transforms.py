"""Batches prepared as a whole, as on a GPU, compared with samples prepared one by one."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.batch_augmentation import plan
from fedhca2.data.feed import Preparation
from fedhca2.data.resident import on_canvas
from fedhca2.data.transforms import UNCHANGED, collate, draw_augmentation, for_evaluation, for_training
from fedhca2.tasks import TASKS

CLASSES = 5
SIZES = [(40, 56), (64, 48), (64, 64), (17, 61)]
TASK_LISTS = [("semseg",), ("normals", "depth"), tuple(TASKS)]


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
@pytest.mark.parametrize("epoch", range(6))
@pytest.mark.parametrize("size", [(64, 64), (32, 96)])
def test_a_batch_is_augmented_like_its_samples(tasks, epoch, size):
    rng = np.random.default_rng(epoch)
    samples = [make_sample(rng, each, tasks) for each in SIZES]
    drawn = [draw_augmentation(0, "client", epoch, index) for index in range(len(samples))]
    expected = collate([for_training(sample, size, each) for sample, each in zip(samples, drawn, strict=True)])
    raw = list(zip(samples, drawn, strict=True))
    found = Preparation()(on_canvas(samples, size), plan(raw, size), TASKS, size, CLASSES)
    assert_close({t: found[t] for t in tasks}, {t: expected[t] for t in tasks}, rtol=0, atol=0)
    assert_close(found["image"], expected["image"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("tasks", TASK_LISTS)
def test_a_batch_is_padded_like_its_samples(tasks):
    rng = np.random.default_rng(0)
    samples = [make_sample(rng, each, tasks) for each in SIZES]
    expected = collate([for_evaluation(sample, (64, 64)) for sample in samples])
    raw = [(sample, UNCHANGED) for sample in samples]
    found = Preparation()(on_canvas(samples, (64, 64)), plan(raw, (64, 64)), TASKS, (64, 64), CLASSES)
    assert_close(found, expected, rtol=0, atol=0)
