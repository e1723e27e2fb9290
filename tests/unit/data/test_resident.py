"""When batches are read, which images stay on a GPU, and how they lie there."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.augmentation import Choices, InputFormat, Preparation, pack
from fedhca2.data.batches import DeviceFeed, bytes_on_canvas, in_chunks, prefetch, read_if_few
from fedhca2.tasks import TASKS

MOST = DeviceFeed.max_client_bytes


def sample(height, width):
    return {"image": torch.full((3, height, width), height, dtype=torch.uint8), "depth": torch.ones(1, height, width)}


def test_images_of_other_sizes_lie_in_the_corners_of_equal_canvases():
    sizes = [(4, 6), (5, 3)]
    samples = read_if_few((7, 9), lambda index: sample(*sizes[(7, 9).index(index)]), (4, 4), MOST)
    images = pack(samples, Choices.none(2), (4, 4))
    assert images.canvases["image"].shape == (2, 3, 5, 6)
    assert images.lengths.tolist() == [[4, 6], [5, 3]]
    chosen = images.chosen(torch.tensor([1, 1]), Choices.none(2)).canvases
    assert (chosen["image"][:, :, :5, :3] == 5).all()


def test_too_many_or_too_large_images_do_not_stay():
    read = []

    def one(index):
        read.append(index)
        return sample(64, 64)

    assert read_if_few(range(MOST), one, (64, 64), MOST) is None
    assert read == [0]
    large = {"image": torch.zeros(1, dtype=torch.uint8).expand(3, MOST, 1)}
    assert read_if_few((0, 1), lambda index: large if index else sample(4, 4), (4, 4), MOST) is None
    assert read_if_few((), one, (4, 4), MOST) is None
    assert bytes_on_canvas({**sample(4, 6), "tags": torch.zeros(5)}, (8, 4)) == 3 * 8 * 6 + 4 * 8 * 6 + 20


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
    resident, form = pack(samples, Choices.none(images), size), InputFormat(TASKS, size, 3)
    order, choices = torch.from_numpy(rng.permutation(images)), Choices.draw(rng, images)
    chunk_lengths = []

    def together(numbers):
        chunk_lengths.append(len(numbers))
        return prepare(resident.chosen(order[numbers], choices.map(lambda values: values[numbers])), form)

    actual = list(in_chunks(images, 2, most, together))
    assert chunk_lengths == lengths
    expected = [together(torch.arange(start, min(start + 2, images))) for start in range(0, images, 2)]
    assert_close(actual, expected, rtol=0, atol=0)


def test_items_are_read_one_ahead_of_their_request():
    read = []
    items = prefetch(read.append(number) or number for number in range(3))
    assert read == [0]
    assert next(items) == 0
    assert read == [0, 1]
    assert list(items) == [1, 2]
