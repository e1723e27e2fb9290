"""Messages on the wire: they arrive as sent, and anything else is refused."""

from dataclasses import replace

import pytest
import torch

from fedhca2.federation.flower import records
from fedhca2.federation.gate import UnusableError, attempt
from fedhca2.messages import Addend, Delivery, Effect, Order, Profile, Reply
from fedhca2.params import Layout, Slot

ENCODER, DECODER = Slot("encoder"), Slot("decoder", "depth")
LAYOUTS = {ENCODER: Layout(("a.weight", "a.bias"), ((2, 3), (2,))), DECODER: Layout(("b.weight",), ((3,),))}
PROFILE = Profile("home", "indoor", ("depth",), 7, LAYOUTS)
UNCOUNTED = replace(PROFILE, samples=0)


def orders():
    shared = torch.randn(8)
    return {
        name: Order(
            3,
            {
                ENCODER: Delivery("trained", (Addend(shared[:], (0.1,), remember=True),)),
                DECODER: Delivery("start", (Addend(torch.randn(3), (0.25,)), Addend(torch.randn(3), (1 / 3,)))),
            },
            compare=True,
            evaluate=True,
            upload={"encoder": "updates", "decoder": "parameters"},
        )
        for name in ("home", "garden")
    }


def reply():
    rows = {ENCODER: torch.randn(8), DECODER: torch.randn(3)}
    numbers = {"losses": {"depth": 1 / 3}, "metrics": {"depth": {"rmse": 0.7}}, "effect": Effect(2 / 3, 0.5, 0.1)}
    return Reply("home", 3, rows, {ENCODER: (0.1 + 0.2,)}, **numbers, seconds=1.5)


def test_an_order_arrives_as_it_was_sent():
    sent = orders()["home"]
    found = records.decode_order(records.encode_orders({"home": sent}, "float32", {})["home"], LAYOUTS)
    assert (found.round, found.finish, found.compare, found.evaluate, found.train) == (3, False, True, True, True)
    assert found.upload == sent.upload
    for slot, delivery in sent.deliveries.items():
        assert found.deliveries[slot].base == delivery.base
        for there, here in zip(delivery.addends, found.deliveries[slot].addends, strict=True):
            assert torch.equal(there.row, here.row)
            assert (there.scale, there.remember) == (here.scale, here.remember)


def test_a_row_for_several_clients_is_one_array_and_a_reply_without_rows_has_none():
    home, garden = (content["rows"] for content in records.encode_orders(orders(), "float32", {}).values())
    [shared] = {*home} - {records.OWN}
    assert home[shared] is garden[shared]
    assert not records.encode_reply(Reply("home", 0), "float32").array_records


def decoded(sent, **change):
    """Decode a reply with a changed header."""
    header = records.header_of(records.encode_reply(sent, "float32")) | change
    rows = torch.cat(list(sent.rows.values()))
    return attempt(records.decode_reply, header, rows, PROFILE)


def test_a_reply_arrives_as_it_was_sent():
    sent = reply()
    found = decoded(sent)
    assert all(torch.equal(found.rows[slot], row) for slot, row in sent.rows.items())
    assert replace(found, rows={}) == replace(sent, rows={})


@pytest.mark.parametrize(
    "change",
    [
        {"client": "garden"},
        {"slots": ["encoder"]},
        {"slots": ["encoder", "decoder.depth", "encoder"]},
        {"slots": ["decoder.depth"] * 3},
        {"slots": ["nose"]},
        {"slots": ["decoder.semseg"]},
        {"slots": 3},
        {"agreement": {"encoder": 3}},
        {"agreement": {"nose": [1.0]}},
        {"failed": None},
    ],
)
def test_a_reply_with_a_wrong_header_is_refused(change):
    assert isinstance(decoded(reply(), **change), UnusableError)


def profile(expected=UNCOUNTED, most=None, **change):
    """Decode a profile with a changed header."""
    header = records.header_of(records.pack(records.profile_as_data(PROFILE))) | change
    return attempt(records.decode_profile, header, expected, most)


@pytest.mark.parametrize("samples", [0, -1, 10**11, 1.5, True, "7", None])
def test_a_profile_with_an_impossible_number_of_images_is_refused(samples):
    assert profile(samples=samples).why.startswith("samples of home: expected 1 to 1000000000 training images")


def test_a_client_cannot_change_its_number_of_images_in_a_run():
    assert profile() == PROFILE
    changed = profile(PROFILE, samples=PROFILE.samples + 1)
    assert f"expected {PROFILE.samples} training images, as before in this run" in changed.why


def test_a_client_has_no_more_images_than_the_experiment_declares():
    assert isinstance(profile(most=PROFILE.samples - 1), UnusableError)


def test_a_client_whose_classes_have_other_names_than_the_experiments_is_refused():
    expected = replace(UNCOUNTED, classes={"depth": "near-far"})
    assert "classes of home, depth" in profile(expected, classes={"depth": "far-near"}).why
    assert profile(expected, classes=expected.classes) == replace(expected, samples=PROFILE.samples)


@pytest.mark.parametrize("classes", [None, [], {"semseg": "x"}, {"depth": 1}, {"depth": "x" * 10_000}])
def test_malformed_classes_are_refused(classes):
    assert profile(classes=classes).why.startswith("classes of home: expected digests")


@pytest.mark.parametrize("key", ["client", "dataset", "tasks", "layouts"])
def test_a_profile_that_is_not_the_expected_one_is_refused(key):
    assert profile(**{key: None}).why.startswith(f"{key} of home: expected")
