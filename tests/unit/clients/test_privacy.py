"""Privacy: the cost of updates as an ε, the law of the noise, and what leaves a client."""

import sys
from collections import Counter
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
import scipy  # imports its parts when they are used
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedhca2.clients.privacy import (
    CAPACITY,
    COLUMNS,
    WIDTH,
    Noise,
    Privacy,
    alias_table,
    audited_epsilon,
    combined,
    epsilon,
    in_steps,
    noise_for,
    privatise,
    scale_within,
    updates_for,
)
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


def test_all_rows_together_are_clipped_if_they_are_long_and_then_noised():
    clipped = privatise(updates(), Privacy(clip=2.0), KEY, 0)
    assert float(torch.cat(list(clipped.values())).norm()) == pytest.approx(2.0)
    noised = privatise(updates(), Privacy(clip=2.0, noise=0.005), KEY, 0)
    assert float((noised[ENCODER] - clipped[ENCODER]).std()) == pytest.approx(0.01, rel=0.1)
    assert_same(privatise(updates(), Privacy(clip=1e6), KEY, 0), updates())
    assert sent(Privacy(clip=1.0), count=3).isfinite().all()  # an update of zero has no length to divide by
    assert privatise({}, NOISY, KEY, 0) == {}


@pytest.mark.parametrize(("clip", "noise"), [(2.0, 0.5), (0.1, 3.0)])
def test_noise_has_the_deviation_of_the_settings(clip, noise):
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


DEVIATIONS = [2.0**24, 1.37 * 2**24, 2.0**25 - 1]


def test_noise_is_normal_also_in_its_tails_and_without_memory_and_takes_every_step_alike():
    source = Noise(bytes(range(32)), DEVIATIONS[1])
    deviates = source.draw(1_000_000)
    far = np.abs(deviates) > 3 * DEVIATIONS[1]
    assert scipy.stats.kstest(deviates / DEVIATIONS[1], "norm").pvalue > 0.01
    assert scipy.stats.binomtest(int(far.sum()), len(deviates), 2 * scipy.stats.norm.sf(3)).pvalue > 0.01
    assert scipy.stats.chisquare(np.bincount(deviates & 63)).pvalue > 0.01
    assert abs(np.corrcoef(deviates[1:], deviates[:-1])[0, 1]) < 5 / len(deviates) ** 0.5
    assert not np.array_equal(source.draw(9), deviates[:9])  # draws go on where they were


@pytest.mark.parametrize("deviation", DEVIATIONS)
def test_each_bin_comes_as_often_as_the_law_says_to_the_last_bits(deviation):
    threshold, alias, highest, _ = alias_table(deviation)
    assert highest.max() <= 1  # no step is wanted more often than it is proposed
    weights = Counter()
    for column in range(COLUMNS):
        own = int(threshold[column])
        weights[column] += own
        weights[int(alias[column])] += CAPACITY - own
    with localcontext(prec=50):
        for bin in range(COLUMNS):
            law = (-((Decimal(WIDTH) * bin / Decimal(deviation)) ** 2) / 2).exp() * weights[0]
            actual = weights[bin] * Decimal(float(highest[bin]))
            assert abs(actual / law - 1) < Decimal("3e-16")


@pytest.mark.parametrize(("noise", "updates"), [(1.0, 1), (4.0, 1), (4.0, 100), (10.0, 100), (30.0, 25)])
def test_epsilon_is_what_a_kept_accountant_says(noise, updates):
    from dp_accounting import GaussianDpEvent  # takes a second, and every worker collects this file
    from dp_accounting.pld import PLDAccountant

    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(noise), updates)
    assert epsilon(noise, updates) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize("noise", [0.003, 0.1, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("updates", [1, 100])
def test_the_audit_is_the_exact_value_or_little_more(noise, updates):
    exact = epsilon(noise, updates)
    assert exact * (1 - 1e-9) <= audited_epsilon({noise: updates}) <= 1.001 * exact + 1e-6


@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-9])
def test_updates_of_different_noise_add_up(delta):
    noises = {1.0: 2, 2.5: 7, 30.0: 40}
    assert audited_epsilon(noises, delta) == pytest.approx(epsilon(combined(noises), delta=delta), rel=1e-5)


def test_without_the_extra_there_is_no_audit(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert audited_epsilon({1.0: 1}) is None


def test_epsilon_is_0_for_no_updates_or_endless_noise_and_infinite_without_noise():
    assert epsilon(1.0, 0) == epsilon(combined({})) == audited_epsilon({}) == epsilon(1e7, 1) == 0
    assert epsilon(0.0, 1) == float("inf")


@pytest.mark.parametrize("budget", [0.1, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("updates", [1, 25, 1000])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_planned_noise_is_the_least_and_planned_updates_the_most_within_the_budget(budget, updates, delta):
    noise = noise_for(budget, updates, delta)
    assert epsilon(noise, updates, delta) <= budget < epsilon(0.998 * noise, updates, delta)
    most = updates_for(budget, noise, delta)
    assert epsilon(noise, most, delta) <= budget < epsilon(noise, most + 1, delta)
