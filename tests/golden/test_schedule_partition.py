"""The learning rate of every epoch, and who gets which image, against the authors' released code."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from fedhca2.clients import Schedule
from fedhca2.experiment import Experiment, OpenData, assign_shards

DATA = np.load(Path(__file__).parent / "data" / "schedule_partition.npz")
IMAGES = {"pascal": 4998, "nyud": 795}


class Numbered(list):
    """A data set with only a number of images, all usable for every task."""

    @property
    def ids(self):
        return list(map(str, self))

    def for_share(self, indices):
        return self

    def usable(self, tasks):
        return range(len(self))


@pytest.mark.parametrize("name", ["pascal_100x1", "nyud_100x4", "short_10x1", "short_6x4"])
def test_learning_rates_are_those_of_the_released_code(name):
    expected = DATA[f"lr/{name}"]
    rates = [Schedule().rate(epoch, len(expected), 1e-4) for epoch in range(len(expected))]
    assert_allclose(rates, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("s1_1C", "fedhca2/scenario1"),
        ("s1_2C", "fedhca2/supplement/table1/2c-local"),
        ("s1_4C", "fedhca2/supplement/table1/4c-local"),
        ("s2_1C", "fedhca2/scenario2"),
    ],
)
def test_clients_get_the_images_of_the_released_code(name, config):
    data = {name: OpenData(Numbered(range(count)), Numbered(range(count))) for name, count in IMAGES.items()}
    shards = assign_shards(Experiment.load(config), data)
    expected = np.split(DATA[f"partition/{name}"], np.cumsum(DATA[f"sizes/{name}"])[:-1])
    assert [shard.train for shard in shards.values()] == [part.tolist() for part in expected]
