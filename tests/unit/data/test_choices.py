"""Random choices that are drawn together are those that are drawn one by one."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhca2.data import choices
from fedhca2.data.choices import Choices, as_doubles, as_integers, draw_choices, draws
from fedhca2.data.transforms import UNCHANGED, draw_augmentation

SCALES = (0.75, 1.25)


@given(st.lists(st.integers(2**32, 2**63 - 1), min_size=1, max_size=5), st.integers(1, 40))
def test_many_generators_give_what_each_gives(seeds, count):
    expected = [np.random.PCG64(seed).random_raw(count).tolist() for seed in seeds]
    assert draws(np.array(seeds, np.uint64), count).tolist() == expected


@given(st.integers(2**32, 2**63 - 1))
def test_outputs_become_the_numbers_of_the_generator(seed):
    output = draws(np.array([seed], np.uint64), 1)
    assert as_doubles(output).item() == np.random.default_rng(seed).random()
    integer, again = as_integers(output, -18, 18)
    assert again.item() or integer.item() == np.random.default_rng(seed).integers(-18, 18)


def test_every_image_has_its_own_choices():
    found = draw_choices(3, "home", 4, range(2000), SCALES)
    assert [found[i] for i in range(2000)] == [draw_augmentation(3, "home", 4, i, SCALES) for i in range(2000)]


@pytest.mark.parametrize("rare", ["hue drawn again", "short seed"])
def test_rare_images_are_drawn_alone(rare, monkeypatch):
    """Both happen to one image in a hundred million: here to every one, and what was drawn together is wrong."""
    if rare == "short seed":
        monkeypatch.setattr(choices, "augmentation_seeds", lambda *_: [7] * 20)
    else:
        monkeypatch.setattr(choices, "as_integers", lambda outputs, *_: (outputs * 0 + 99, outputs == outputs))
    found = draw_choices(0, "home", 1, range(20), SCALES)
    expected = [draw_augmentation(0, "home", 1, i, SCALES) for i in range(20)]
    if rare == "short seed":
        assert [found[i] for i in range(20)] == expected
    else:
        assert [found[i].distortion.hue for i in range(20)] == [one.distortion.hue for one in expected]


def test_choices_of_augmentations_are_these():
    each = [UNCHANGED, UNCHANGED]
    assert [Choices.of(each)[i] for i in range(2)] == each
