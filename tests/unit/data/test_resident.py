"""Which images stay on a GPU, and how they lie there."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.batch_augmentation import plan_all
from fedhca2.data.choices import Choices
from fedhca2.data.feed import Preparation
from fedhca2.data.resident import MOST, ResidentImages, bytes_on_canvas, in_chunks
from fedhca2.data.transforms import draw_augmentation
from fedhca2.tasks import TASKS

CPU = torch.device("cpu")


def sample(height, width):
    return {"image": torch.full((3, height, width), height, dtype=torch.uint8), "depth": torch.ones(1, height, width)}


def test_images_of_other_sizes_lie_in_the_corners_of_equal_canvases():
    sizes = [(4, 6), (5, 3)]
    held = ResidentImages.if_few((7, 9), lambda index: sample(*sizes[(7, 9).index(index)]), (4, 4), CPU)
    assert held.canvases["image"].shape == (2, 3, 5, 6)
    assert held.lengths.tolist() == [[4, 6], [5, 3]]
    chosen = held.chosen(torch.tensor([1, 1]))
    assert (chosen["image"][:, :, :5, :3] == 5).all()


def test_bytes_are_those_of_the_canvas():
    assert bytes_on_canvas(sample(4, 6), (8, 4)) == 3 * 8 * 6 + 4 * 8 * 6
    assert bytes_on_canvas({"image": sample(4, 4)["image"], "tags": torch.zeros(5)}, (4, 4)) == 3 * 16 + 20


def test_too_many_images_do_not_stay_and_only_one_is_read():
    read = []

    def one(index):
        read.append(index)
        return sample(64, 64)

    assert ResidentImages.if_few(range(MOST), one, (64, 64), CPU) is None
    assert read == [0]


def test_images_that_are_larger_than_the_first_do_not_stay():
    large = {"image": torch.zeros(1, dtype=torch.uint8).expand(3, MOST, 1)}
    assert ResidentImages.if_few((0, 1), lambda index: large if index else sample(4, 4), (4, 4), CPU) is None


def test_no_images_do_not_stay():
    assert ResidentImages.if_few((), lambda index: sample(4, 4), (4, 4), CPU) is None


@pytest.mark.parametrize(
    ("images", "most", "lengths"), [(10, 8, [8, 8]), (10, 100, [16]), (8, 0, [2] * 4), (1, 8, [2])]
)
def test_batches_do_not_depend_on_how_many_images_are_prepared_together(images, most, lengths):
    rng, size, prepare = np.random.default_rng(0), (32, 32), Preparation()
    samples = [
        {
            "image": torch.from_numpy(rng.integers(0, 256, (3, 40, 36), dtype=np.uint8)),
            "semseg": torch.from_numpy(rng.integers(0, 3, (1, 40, 36), dtype=np.uint8)),
        }
        for _ in range(images)
    ]
    held = ResidentImages(range(images), samples, size, CPU)
    places = torch.from_numpy(rng.permutation(images))
    choices = Choices.of([draw_augmentation(0, "client", 0, index) for index in range(images)])
    plan = plan_all(held.lengths[places.tolist()], choices, size)
    found_lengths = []

    def together(own, part):
        found_lengths.append(len(own))
        return prepare(held.chosen(own), part, TASKS, size, 3)

    found = list(in_chunks(places, plan, 2, most, together))
    assert found_lengths == lengths
    numbers = [torch.arange(start, min(start + 2, images)) for start in range(0, images, 2)]
    assert_close(
        found, [prepare(held.chosen(places[own]), plan.at(own), TASKS, size, 3) for own in numbers], rtol=0, atol=0
    )
