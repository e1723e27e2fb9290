from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
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


def sent(privacy=NOISY, key=KEY, round=0, slot=ENCODER, first=0.0, count=MANY):
    """What leaves of an update of zeros, but for its first value."""
    update = torch.zeros(count)
    update[0] = first
    return privatise({slot: update}, privacy, key, round)[slot]


def assert_same(one, other):
    assert_close(dict(one), dict(other), rtol=0, atol=0)


def test_all_rows_together_are_clipped_unless_they_are_small():
    clipped = privatise(updates(), Privacy(clip=2.0), KEY, 0)
    assert float(torch.cat(list(clipped.values())).norm()) == pytest.approx(2.0)
    assert_same(privatise(updates(), Privacy(clip=1e6), KEY, 0), updates())


@pytest.mark.parametrize("privacy", [Privacy(clip=1.0), NOISY])
def test_an_update_of_zero_can_leave_and_so_can_none(privacy):
    assert sent(privacy, count=3).isfinite().all()
    assert privatise({}, privacy, KEY, 0) == {}


def test_a_noised_update_is_the_clipped_one_give_or_take_the_noise():
    clipped, noised = (privatise(updates(), Privacy(clip=1.0, noise=noise), KEY, 0)[ENCODER] for noise in (0, 0.01))
    assert float((noised - clipped).std()) == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(("clip", "noise"), [(2.0, 0.5), (0.1, 3.0)])
def test_noise_has_the_deviation_that_is_asked_for(clip, noise):
    assert float(sent(Privacy(clip=clip, noise=noise)).std()) == pytest.approx(clip * noise, rel=0.02)


OTHERS = {
    "key": {"key": OTHER},
    "round": {"round": 1},
    "slot": {"slot": EDGE},
    "update of one round": {"first": 1e-3},
    "setting": {"privacy": Privacy(clip=1.0, noise=1.5)},
}


@pytest.mark.parametrize("other", OTHERS)
def test_noise_is_unrelated_to_that_of_another(other):
    """So two messages never tell the difference of what they hide."""
    assert abs(float(torch.corrcoef(torch.stack([sent(), sent(**OTHERS[other])]))[0, 1])) < UNRELATED


def test_every_bit_of_the_key_counts():
    keys = [(1 << bit).to_bytes(32, "big") for bit in range(256)]
    assert len({tuple(sent(key=key, count=4).tolist()) for key in keys}) == 256


def test_the_same_update_has_the_same_noise_whatever_the_generators_threads_and_order_of_rows():
    expected, threads = privatise(updates(MANY), NOISY, KEY, 3), torch.get_num_threads()
    torch.manual_seed(2)
    np.random.seed(2)
    try:
        torch.set_num_threads(4)
        assert_same(privatise(dict(reversed(updates(MANY).items())), NOISY, KEY, 3), expected)
    finally:
        torch.set_num_threads(threads)


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


REFUSED = [
    (lambda: privatise({ENCODER: torch.tensor([1.0, float("inf")])}, NOISY, KEY, 0), "finite update"),
    (lambda: privatise(updates(), NOISY, bytes(16), 0), "32 bytes, got 16"),
    (lambda: Privacy(noise=1.0), "a clip with the noise"),
    (lambda: Privacy(clip=1.0, noise=1e-6), r"at least 0\.001.*ε of 504,264, got 1e-06"),
]


@pytest.mark.parametrize(("attempt", "message"), REFUSED)
def test_what_would_hide_nothing_is_refused(attempt, message):
    with pytest.raises(ValueError, match=message):
        attempt()
