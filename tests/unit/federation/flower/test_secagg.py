"""Secure aggregation: sums are correct, rows stay hidden, and clients that drop out or cheat change nothing else."""

from statistics import NormalDist

import numpy as np
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from flwr.common.secure_aggregation.secaggplus_utils import pseudo_rand_gen
from flwr.supercore.primitives.asymmetric import public_key_to_bytes

from fedhca2.federation.flower.answers import SiteAnswer
from fedhca2.federation.flower.deploy.secagg_server import read_keys
from fedhca2.federation.flower.deploy.secagg_site import (
    MASK,
    SHARE,
    UNMASK,
    Secrets,
    Steps,
    SumRefusedError,
    mask,
    new_keys,
)
from fedhca2.federation.flower.deploy.site_config import SiteSums
from secure_clients import Clients, summing

NUMEL = 400
NAMES = ["a", "b", "c", "d", "e"]
MEAN = dict.fromkeys(NAMES, 0.2)


def some_rows(names=NAMES):
    rng = torch.Generator().manual_seed(0)
    return {name: 0.1 * torch.randn(NUMEL, generator=rng) for name in names}


ROWS = some_rows()


def add(*weights, rows=ROWS, **options):
    """The sums with these weights, or the mean, of clients with these options."""
    return Clients(rows, **options).add(*(summing(each, NUMEL) for each in weights or [MEAN]))


def assert_sum(found, weights, members=5, steps=1.0):
    """It is the weighted sum of rows, off by half a step, or some more, and by float32's rounding of values."""
    expected = sum(weight * ROWS[name].double() for name, weight in weights.items())
    assert (found.double() - expected).abs().max() <= steps * (Steps(8.0, members).size / 2 + 1e-8)


def equally(names):
    return dict.fromkeys(names, 1 / len(names))


UNEVEN = {"a": 0.5, "b": 0.2, "c": 0.1, "d": 0.1, "e": 0.1}
PAIRS = [equally("ad"), equally("bce")]


@pytest.mark.parametrize(("weights", "steps"), [(MEAN, 1.0), (UNEVEN, 2.5)], ids=["a mean", "weights"])
def test_a_sum_is_off_by_half_a_step_of_each_at_most(weights, steps):
    assert_sum(add(weights).rows[0], weights, steps=steps)


def test_two_sums_at_once_have_different_clients():
    first, second = add(*PAIRS).rows
    assert_sum(first, PAIRS[0], members=2)
    assert_sum(second, PAIRS[1], members=3)


@pytest.mark.parametrize("stage", [SHARE, MASK])
def test_a_client_that_drops_out_is_named_and_left_out_of_the_mean(stage):
    found = add(absent={"c": stage})
    assert_sum(found.rows[0], equally("abde"), steps=1.25)
    assert found.dropped == {"c": "not there"}


def test_a_client_that_drops_out_after_its_row_came_is_in_the_mean():
    found = add(absent={"c": UNMASK})
    assert_sum(found.rows[0], MEAN)
    assert found.dropped == {}


@pytest.mark.parametrize("stage", [SHARE, MASK, UNMASK])
def test_too_few_clients_give_no_sum_and_the_reason(stage):
    found = add(absent=dict.fromkeys("abc", stage))
    assert found.rows == [None]
    assert set(found.dropped) == set(NAMES)
    assert "expected 3 clients" in found.dropped["e"]


def test_the_last_client_of_a_sum_sends_no_row():
    found = add(*PAIRS, absent={"d": MASK})
    assert found.rows[0] is None
    assert set(found.dropped) == {"a", "d"}
    assert_sum(found.rows[1], PAIRS[1], members=3)


def after_masking():
    clients = Clients(ROWS)
    clients.add(summing(MEAN, NUMEL))
    return clients


def masked_by(clients, name):
    return next(masked for stage, client, _, masked in clients.seen if (stage, client) == (MASK, name))


def chi_square_of_bytes(values):
    """How far the bytes of numbers are from uniform, in standard deviations of the statistic."""
    counts = np.bincount(values.view(np.uint8), minlength=256)
    expected = counts.sum() / 256
    return (((counts - expected) ** 2 / expected).sum() - 255) / (2 * 255) ** 0.5


def test_what_the_server_gets_of_a_row_is_uniform():
    rows = {name: torch.zeros(100_000) for name in "abc"}
    clients = Clients(rows)
    clients.add(summing(equally("abc"), 100_000))
    for name in rows:
        assert abs(chi_square_of_bytes(masked_by(clients, name))) < NormalDist().inv_cdf(1 - 1e-7)


def test_the_same_row_looks_different_every_time_also_when_a_sum_is_repeated():
    repeated = Clients(ROWS, spoiled={("e", SHARE): unreadable(*"abcd")})
    repeated.add(summing(MEAN, NUMEL))
    again = [masked for stage, client, _, masked in repeated.seen if (stage, client) == (MASK, "a")]
    for one, other in ([masked_by(after_masking(), "a") for _ in range(2)], again):
        assert (one == other).mean() < 0.02


def test_flowers_own_masks_are_not_used_since_different_secrets_give_the_same():
    one, other = bytes(range(32)), bytes(range(4, 8)) + bytes(range(4)) + bytes(range(8, 32))
    assert np.array_equal(pseudo_rand_gen(one, 2**32, [(9,)])[0], pseudo_rand_gen(other, 2**32, [(9,)])[0])
    assert not np.array_equal(mask(one, 0, 9), mask(other, 0, 9))
    assert not np.array_equal(mask(one, 0, 9), mask(one, 1, 9))  # nor are the masks of two sums the same


@pytest.mark.parametrize("value", [9.0, torch.nan])
def test_a_client_with_a_value_beyond_the_clip_sends_only_the_reason(value):
    found = add(rows=ROWS | {"b": torch.full((NUMEL,), value)})
    assert list(found.dropped) == ["b"]
    assert f"at most 8 (secure_aggregation.clip), got {value:g}" in found.dropped["b"]


def test_invalid_masked_numbers_fail_only_this_round():
    def spoil(header, masked):
        return header, masked + np.uint32(2**31)

    found = add(spoiled={("b", MASK): spoil})
    assert found.rows == [None]
    assert "values within the clip" in found.dropped["a"]


def made_up(header, masked):
    return {**header, "seeds": dict.fromkeys(header["seeds"], "01000000" + "ab" * 48)}, masked


def test_shares_that_are_made_up_change_nothing_while_there_are_enough_others():
    assert_sum(add(spoiled={("a", UNMASK): made_up}).rows[0], MEAN)


def test_too_many_forged_shares_are_noticed_and_fail_the_round():
    found = add(spoiled={(name, UNMASK): made_up for name in "abc"})
    assert found.rows == [None]
    assert "shares of a's secret: expected those of its commitment" in found.dropped["a"]


def unreadable(*readers):
    def spoil(header, masked):
        return {**header, "shares": header["shares"] | dict.fromkeys(readers, "gAAAAA")}, masked

    return spoil


def forgetful(header, masked):
    return {**header, "shares": {name: text for name, text in header["shares"].items() if name != "a"}}, masked


def complaining(header, masked):
    return {**header, "unreadable": NAMES}, masked


@pytest.mark.parametrize(
    ("stage", "spoil"), [(SHARE, unreadable("a")), (SHARE, forgetful), (MASK, complaining)], ids=["one", "none", "all"]
)
def test_one_share_that_cannot_be_read_or_is_missing_costs_nobody_the_round(stage, spoil):
    found = add(spoiled={("e", stage): spoil})
    assert found.rows[0] is not None
    assert found.dropped == {}


@pytest.mark.parametrize("readers", [{"e": "abcd"}, {"e": "abc"}, {"d": "abc", "e": "abcd"}])
def test_clients_whose_shares_others_cannot_read_are_named_and_left_out(readers):
    left = [name for name in NAMES if name not in readers]
    spoiled = {(name, SHARE): unreadable(*others) for name, others in readers.items()}
    found = add(spoiled=spoiled)
    assert_sum(found.rows[0], equally(left), steps=5 / len(left))
    assert set(found.dropped) == set(readers)
    assert found.dropped["e"] == f"{', '.join(readers['e'])} cannot read its shares"


def test_too_many_clients_with_unreadable_shares_give_no_sum():
    found = add(spoiled={(name, SHARE): unreadable(*NAMES) for name in "cde"})
    assert found.rows == [None]
    assert "cannot read its shares" in found.dropped["a"]
    assert {name for name, why in found.dropped.items() if why.endswith("cannot read its shares")} >= {*"cde"}


WEIGHTS = {
    "one row alone": {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0, "e": 0.0},
    "nearly one row": {"a": 1.0, "b": 1e-9, "c": 1e-9, "d": 1e-9, "e": 1e-9},
    "mostly one row": {"a": 0.8, "b": 0.05, "c": 0.05, "d": 0.05, "e": 0.05},
    "a difference": {"a": 1.0, "b": 1.0, "c": -1.0, "d": 1.0, "e": 1.0},
    "no number": {"a": 1.0, "b": float("nan"), "c": 1.0, "d": 1.0, "e": 1.0},
    "two rows": {"a": 0.5, "b": 0.5},
}


@pytest.mark.parametrize("weights", WEIGHTS.values(), ids=WEIGHTS)
def test_a_site_helps_with_no_sum_that_is_nearly_a_row(weights):
    clients = Clients(ROWS, rules=SiteSums())
    found = clients.add(summing(weights, NUMEL))
    assert found.rows == [None]
    assert not [masked for stage, _, _, masked in clients.seen if stage == MASK]


def test_weights_that_differ_are_refused_where_the_method_says_that_they_are_equal():
    uneven = {"a": 0.3, "b": 0.2, "c": 0.2, "d": 0.2, "e": 0.1}
    assert add(uneven, rules=SiteSums()).rows[0] is not None
    assert add(uneven, rules=SiteSums(), equal=["encoder"]).rows == [None]


def test_a_sum_of_two_after_a_dropout_is_refused():
    assert add(equally("abc"), rows=some_rows("abc"), absent={"c": MASK}, rules=SiteSums()).rows == [None]


KEY = new_keys(Secrets(), 0)[1][0]
RSA = rsa.generate_private_key(65537, 2048).public_key()


@pytest.mark.parametrize(
    "keys", [["x", "y"], [KEY], [KEY, KEY], [KEY, 3], [KEY, public_key_to_bytes(RSA).decode()], None]
)
def test_keys_that_others_could_not_use_are_not_passed_on(keys):
    with pytest.raises((ValueError, TypeError)):
        read_keys(SiteAnswer({"keys": keys}, None))


UNSAFE = {
    "both shares of one client": {"stayed": NAMES, "dropped": ["b"]},
    "too few that stayed": {"stayed": ["a", "b"], "dropped": ["c", "d", "e"]},
    "others than took part": {"stayed": [*NAMES, "mallory"], "dropped": []},
    "another sum of the same rows": {"stayed": ["a", "b", "c", "d"], "dropped": ["e"]},
}


@pytest.mark.parametrize("request_", UNSAFE.values(), ids=UNSAFE)
def test_a_site_does_not_help_to_unmask(request_):
    clients = after_masking()
    with pytest.raises(SumRefusedError):
        clients.answer("a", UNMASK, request_)


def test_a_repeated_request_or_round_has_the_same_answer_or_sum():
    clients, request = after_masking(), {"stayed": NAMES, "dropped": []}
    assert clients.answer("a", UNMASK, request) == clients.answer("a", UNMASK, request)
    assert torch.equal(clients.add(summing(MEAN, NUMEL)).rows[0], add().rows[0])


SUMS = {
    "of one client": [{"a": {"encoder": 1.0}}],
    "with one row in two of them": [{"a": {"encoder": 1.0}, "b": {}}, {"a": {"encoder": 1.0}, "c": {}}],
    "with a stranger": [{"a": {"encoder": 1.0}, "mallory": {"encoder": 1.0}}],
}


@pytest.mark.parametrize("sums", SUMS.values(), ids=SUMS)
def test_a_site_masks_no_rows_for_unsafe_sums(sums):
    clients = Clients(ROWS, absent=dict.fromkeys(NAMES, MASK))
    clients.add(summing(MEAN, NUMEL))
    clients.gone.clear()
    clients.absent = {}
    with pytest.raises(SumRefusedError, match="sum"):
        clients.answer("a", MASK, {"sums": sums, "shares": dict.fromkeys("bcde", "")})


def test_a_site_masks_a_row_once_for_each_set_of_keys():
    other = [{name: {"encoder": 0.5} for name in "ab"}]
    with pytest.raises(ValueError, match="one request to mask"):
        after_masking().answer("a", MASK, {"sums": other, "shares": dict.fromkeys("bcde", "")})
