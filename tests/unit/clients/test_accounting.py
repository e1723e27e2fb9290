import sys

import pytest

from fedhca2.clients.privacy import audited_epsilon, combined, epsilon, noise_for, updates_for


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


def test_nothing_sent_and_noise_that_hides_all_cost_nothing_and_without_noise_nothing_is_private():
    assert epsilon(1.0, 0) == epsilon(combined({})) == audited_epsilon({}) == epsilon(1e7, 1) == 0
    assert epsilon(0.0, 1) == float("inf")


@pytest.mark.parametrize("wanted", [0.1, 1.0, 8.0, 300.0])
@pytest.mark.parametrize("updates", [1, 25, 1000])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
def test_planned_noise_is_the_least_that_keeps_to_the_budget(wanted, updates, delta):
    noise = noise_for(wanted, updates, delta)
    assert epsilon(noise, updates, delta) <= wanted < epsilon(0.998 * noise, updates, delta)


@pytest.mark.parametrize(("wanted", "noise"), [(1.0, 20.0), (8.0, 4.0), (50.0, 0.9)])
def test_planned_updates_are_the_most_that_keep_to_the_budget(wanted, noise):
    updates = updates_for(wanted, noise)
    assert epsilon(noise, updates) <= wanted < epsilon(noise, updates + 1)
