import sys

import pytest
import torch
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from pydantic import ValidationError
from torch.testing import assert_close

from fedhca2.clients.privacy import Privacy, audited_epsilon, epsilon, privatise
from fedhca2.federation.result import sent_rounds, spent_epsilon
from fedhca2.params import Slot
from small_run import small

ENCODER, EDGE = Slot("encoder"), Slot("decoder", "edge")


def updates(count=1000):
    rng = torch.Generator().manual_seed(0)
    return {ENCODER: torch.randn(count, generator=rng), EDGE: torch.randn(count, generator=rng)}


def norm(rows):
    return float(torch.cat(list(rows.values())).norm())


def test_all_rows_together_are_clipped():
    assert norm(privatise(updates(), Privacy(clip=2.0), "", 0)) == pytest.approx(2.0)


def test_a_small_update_stays_as_it_is():
    assert_close(privatise(updates(), Privacy(clip=1e6), "", 0), updates(), rtol=0, atol=0)


def test_an_update_of_zero_stays_zero():
    zero = {ENCODER: torch.zeros(3)}
    assert_close(privatise(zero, Privacy(clip=1.0), "", 0), zero)


def test_noise_has_the_deviation_that_is_asked_for():
    sent = privatise({ENCODER: torch.zeros(100_000)}, Privacy(clip=2.0, noise=0.5), "secret", 0)
    assert float(sent[ENCODER].std()) == pytest.approx(1.0, rel=0.02)


@pytest.mark.parametrize(
    ("secret", "round", "slot"), [("other", 0, ENCODER), ("secret", 1, ENCODER), ("secret", 0, EDGE)]
)
def test_noise_differs_by_secret_round_and_slot(secret, round, slot):
    privacy = Privacy(clip=1.0, noise=1.0)
    one = privatise({ENCODER: torch.zeros(9)}, privacy, "secret", 0)[ENCODER]
    other = privatise({slot: torch.zeros(9)}, privacy, secret, round)[slot]
    assert not torch.equal(one, other)


def test_noise_without_a_clip_is_refused():
    with pytest.raises(ValidationError, match="noise should come with a clip"):
        Privacy(noise=1.0)


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 1), (4.0, 100), (10.0, 100), (30.0, 25)])
def test_epsilon_is_what_a_kept_accountant_says(noise, rounds):
    accountant = PLDAccountant()
    accountant.compose(GaussianDpEvent(noise), rounds)
    assert epsilon(noise, rounds) == pytest.approx(accountant.get_epsilon(1e-5), rel=1e-6)


@pytest.mark.parametrize("noise", [0.001, 0.1, 1.0, 10.0])
@pytest.mark.parametrize("rounds", [1, 100])
def test_the_bound_of_the_library_holds(noise, rounds):
    exact = epsilon(noise, rounds)
    assert exact <= audited_epsilon(noise, rounds) <= 1.2 * exact


def test_without_the_extra_there_is_no_audit(monkeypatch):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert audited_epsilon(1.0, 1) is None


def test_rounds_in_which_nothing_is_sent_cost_nothing():
    experiment = small({"name": "fedper", "every": 2}, rounds=3, privacy={"clip": 1.0, "noise": 1.0})
    assert (sent_rounds(experiment), spent_epsilon(small("local", privacy={"clip": 1.0, "noise": 1.0}))) == (1, 0)


def test_nothing_sent_costs_nothing():
    assert epsilon(1.0, 0) == 0


def test_without_noise_nothing_is_private():
    assert epsilon(0.0, 1) == float("inf")


def test_noise_that_hides_all_costs_nothing():
    assert epsilon(1e7, 1) == 0
