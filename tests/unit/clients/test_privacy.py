from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from torch.testing import assert_close

from fedhca2.clients.privacy import Privacy, in_steps, privatise, scale_within
from fedhca2.params import Slot

ENCODER, EDGE = Slot("encoder"), Slot("decoder", "edge")
KEY, OTHER = bytes(32), bytes(31) + b"\1"  # one bit apart
NOISY = Privacy(clip=1.0, noise=1.0)
MANY = 100_000
UNRELATED = 5 / MANY**0.5  # five standard deviations of the correlation of MANY independent numbers


def updates(count=1000):
    rng = torch.Generator().manual_seed(0)
    return {ENCODER: torch.randn(count, generator=rng), EDGE: torch.randn(count, generator=rng)}


def zeros(slot=ENCODER, count=MANY):
    return {slot: torch.zeros(count)}


def norm(rows):
    return float(torch.cat(list(rows.values())).norm())


def correlation(one, other):
    return abs(float(torch.corrcoef(torch.stack([one, other]))[0, 1]))


def test_all_rows_together_are_clipped():
    assert norm(privatise(updates(), Privacy(clip=2.0), KEY, 0)) == pytest.approx(2.0)


def test_a_small_update_stays_as_it_is():
    assert_close(privatise(updates(), Privacy(clip=1e6), KEY, 0), updates(), rtol=0, atol=0)


@pytest.mark.parametrize("privacy", [Privacy(clip=1.0), NOISY])
def test_an_update_of_zero_can_leave(privacy):
    assert privatise({ENCODER: torch.zeros(3)}, privacy, KEY, 0)[ENCODER].isfinite().all()


def test_nothing_leaves_where_nothing_is_asked_for():
    assert privatise({}, NOISY, KEY, 0) == {}


def test_a_noised_update_is_the_clipped_one_give_or_take_the_noise():
    clipped = privatise(updates(), Privacy(clip=1.0), KEY, 0)[ENCODER]
    sent = privatise(updates(), Privacy(clip=1.0, noise=0.01), KEY, 0)[ENCODER]
    assert float((sent - clipped).std()) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(("clip", "noise"), [(2.0, 0.5), (0.1, 3.0)])
def test_noise_has_the_deviation_that_is_asked_for(clip, noise):
    sent = privatise(zeros(), Privacy(clip=clip, noise=noise), KEY, 0)[ENCODER]
    assert float(sent.std()) == pytest.approx(clip * noise, rel=0.02)


@pytest.mark.parametrize(
    ("key", "round", "slot"), [(OTHER, 0, ENCODER), (KEY, 1, ENCODER), (KEY, 0, EDGE)], ids=["key", "round", "slot"]
)
def test_noise_is_unrelated_between_keys_rounds_and_slots(key, round, slot):
    one, other = privatise(zeros(), NOISY, KEY, 0)[ENCODER], privatise(zeros(slot), NOISY, key, round)[slot]
    assert correlation(one, other) < UNRELATED


def test_every_bit_of_the_key_counts():
    keys = [(1 << bit).to_bytes(32, "big") for bit in range(256)]
    sent = {tuple(privatise(zeros(count=4), NOISY, key, 0)[ENCODER].tolist()) for key in keys}
    assert len(sent) == 256


def test_no_generator_of_torch_or_numpy_has_a_part_in_the_noise():
    found = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        np.random.seed(seed)
        found.append(privatise(updates(), NOISY, KEY, 0))
    assert_close(found[0], found[1], rtol=0, atol=0)


def test_the_same_update_has_the_same_noise():
    assert_close(privatise(updates(), NOISY, KEY, 3), privatise(updates(), NOISY, KEY, 3), rtol=0, atol=0)


def test_the_number_of_threads_does_not_change_what_is_sent():
    threads, found = torch.get_num_threads(), []
    try:
        for count in (1, 4):
            torch.set_num_threads(count)
            found.append(privatise(updates(MANY), NOISY, KEY, 0))
    finally:
        torch.set_num_threads(threads)
    assert_close(found[0], found[1], rtol=0, atol=0)


def test_two_updates_of_one_round_do_not_tell_their_difference():
    one, other = zeros(), zeros()
    other[ENCODER][0] = 1e-3
    sent = [privatise(update, NOISY, KEY, 0)[ENCODER] for update in (one, other)]
    assert correlation(*sent) < UNRELATED


def test_settings_that_change_do_not_tell_their_difference_either():
    sent = [privatise(zeros(), Privacy(clip=1.0, noise=noise), KEY, 0)[ENCODER] for noise in (1.0, 1.5)]
    assert correlation(*sent) < UNRELATED


@pytest.mark.parametrize("scale", [0.0, 1e-6, 1.0, 1e6])
@pytest.mark.parametrize("noise", [0.001, 0.3, 20.0])
def test_every_number_is_on_a_lattice_that_only_the_settings_decide_on(scale, noise):
    privacy = Privacy(clip=0.7, noise=noise)
    sent = privatise({ENCODER: scale * updates()[ENCODER]}, privacy, KEY, 0)[ENCODER]
    steps = sent.double() / privacy.step
    assert 2**24 <= privacy.deviation / privacy.step < 2**25
    assert torch.equal(steps, steps.round())


@given(
    values=st.lists(st.floats(-(2.0**100), 2.0**100, width=32), min_size=1, max_size=20),
    clip=st.floats(1e-3, 1e3),
    noise=st.floats(1e-3, 1e3),
)
def test_what_is_noised_is_no_longer_than_the_clip_for_sure(values, clip, noise):
    row, step = torch.tensor(values), Privacy(clip=clip, noise=noise).step
    steps = np.concatenate(list(in_steps(row, scale_within(clip, [row]), step)))
    length = sum(int(each) ** 2 for each in steps) * Fraction(step) ** 2
    assert length <= Fraction(clip) ** 2


def test_an_update_that_is_not_finite_does_not_leave():
    with pytest.raises(ValueError, match="finite update"):
        privatise({ENCODER: torch.tensor([1.0, float("inf")])}, NOISY, KEY, 0)


def test_noise_without_a_clip_is_refused():
    with pytest.raises(ValidationError, match="a clip with the noise"):
        Privacy(noise=1.0)


def test_noise_that_hides_nothing_is_refused():
    with pytest.raises(ValidationError, match=r"at least 0\.001.*ε of 504,264, got 1e-06"):
        Privacy(clip=1.0, noise=1e-6)


def test_a_key_of_fewer_bits_is_refused():
    with pytest.raises(ValueError, match="32 bytes, got 16"):
        privatise(updates(), NOISY, bytes(16), 0)


def test_the_order_of_rows_does_not_change_what_is_sent():
    turned = dict(reversed(updates().items()))
    assert_close(privatise(turned, NOISY, KEY, 0), privatise(updates(), NOISY, KEY, 0), rtol=0, atol=0)
