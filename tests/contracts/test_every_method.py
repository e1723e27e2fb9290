"""Properties of every method in the catalogue, on random federations of arrays."""

from dataclasses import replace

import pytest
import torch
from array_federation import SCENARIOS, SHARED, ArrayFederation, Site, sites
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from fedhca2.clients import load_state, save_state
from fedhca2.federation.guard import Guard
from fedhca2.federation.server import Server
from fedhca2.methods import METHODS, resolve
from fedhca2.params import ENCODER
from fedhca2.run_folder.records import Progress, SlotKey, progress_as_state, progress_from_state

WITH_MEMORY = resolve("mgda", {"memory": 0.9})
LONE = ("encoder", "deep")  # which no two sites of any scenario have
every_method = pytest.mark.parametrize("name", METHODS)
brief = settings(max_examples=6, deadline=None)
scenarios = st.tuples(sites(), st.integers(0, 99))


def stored_and_read(state, path):
    """The server's state as a resumed run has it."""
    save_state(path, progress_as_state(Progress(state), {}))
    return progress_from_state(load_state(path)).state


def assert_same(actual, expected, **tolerance):
    for a, b in zip(actual, expected, strict=True):
        assert a.keys() == b.keys()
        for slot in a:
            assert_close(a[slot], b[slot], **tolerance)


@every_method
@brief
@given(scenario=scenarios, data=st.data())
def test_the_order_of_clients_and_replies_does_not_matter(name, scenario, data):
    straight, shuffled = (ArrayFederation(METHODS[name], *scenario) for _ in range(2))
    shuffled.server.profiles = dict(reversed(shuffled.server.profiles.items()))
    order = data.draw(st.permutations(range(len(scenario[0]))))
    for _ in range(3):
        straight.round()
        shuffled.round(lambda replies: [replies[i] for i in order])
    assert_same([c.rows for c in shuffled.clients], [c.rows for c in straight.clients], rtol=0, atol=0)


@every_method
@brief
@given(scenario=scenarios)
def test_names_do_not_matter(name, scenario):
    count = len(scenario[0])
    named = ArrayFederation(METHODS[name], *scenario, names=[f"{'zebra'[i]}{i}" for i in range(count)]).run(3)
    assert_same(named, ArrayFederation(METHODS[name], *scenario).run(3), rtol=1e-4, atol=1e-5)


@every_method
def test_identical_clients_stay_identical(name):
    federation = ArrayFederation(METHODS[name], [Site("indoor", ("semseg", "depth"))] * 3)
    for client in federation.clients:
        client.rows = federation.clients[0].rows
    for round in range(3):
        first = federation.replies(round)
        again = [replace(reply, rows=first[0].rows, agreement=first[0].agreement) for reply in first]
        for client in federation.clients:
            client.rows, client.start = federation.clients[0].rows, federation.clients[0].start
        federation.state, deliveries, _ = federation.server.step(federation.state, again)
        for client in federation.clients:
            client.receive(deliveries[client.profile.client])
    rows = [client.rows for client in federation.clients]
    assert_same(rows[1:], [rows[0]] * 2, rtol=1e-6, atol=1e-6)


@every_method
@brief
@given(scenario=scenarios)
def test_what_the_clients_sent_is_not_changed(name, scenario):
    federation = ArrayFederation(METHODS[name], *scenario)
    replies = federation.replies(0)
    before = [{slot: row.clone() for slot, row in reply.rows.items()} for reply in replies]
    Guard(federation.server).step(federation.state, replies)
    assert_same([reply.rows for reply in replies], before, rtol=0, atol=0)


@every_method
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_client_gets_every_slot_of_a_shared_part_and_values_stay_finite(name, scenario):
    federation = ArrayFederation(METHODS[name], SCENARIOS[scenario])
    deliveries = federation.round()
    expected = {
        client.profile.client: {
            slot for slot in client.rows if slot.part in SHARED[name] and (slot.part, site.encoder) != LONE
        }
        for client, site in zip(federation.clients, federation.sites, strict=True)
    }
    assert {client: set(delivered) for client, delivered in deliveries.items()} == expected
    assert all(row.isfinite().all() for rows in federation.run(5) for row in rows.values())


@every_method
def test_encoders_are_mixed_as_if_there_were_no_others_than_those_of_their_layout(name):
    federation = ArrayFederation(METHODS[name], SCENARIOS["two encoders, and one that nobody shares"])
    plain = [i for i, site in enumerate(federation.sites) if site.encoder == "plain"]
    replies = federation.replies(0)
    apart = Server(METHODS[name], [federation.clients[i].profile for i in plain])
    _, expected, _ = apart.step(apart.start(), [replies[i] for i in plain])
    _, actual, _ = federation.server.step(federation.state, replies)
    for client, delivered in expected.items():
        for slot in set(delivered) & {ENCODER}:
            pairs = zip(actual[client][slot].addends, delivered[slot].addends, strict=True)
            assert all(one.row.equal(other.row) and one.scale == other.scale for one, other in pairs)


@pytest.mark.parametrize("method", [*METHODS.values(), WITH_MEMORY], ids=[*METHODS, "a moving average of weights"])
@brief
@given(scenario=scenarios)
def test_a_stored_state_continues_alike(method, tmp_path_factory, scenario):
    straight, resumed = (ArrayFederation(method, *scenario) for _ in range(2))
    straight.run(3)
    resumed.run(2)
    resumed.state = stored_and_read(resumed.state, tmp_path_factory.mktemp("state") / "state")
    assert_same(resumed.run(1), [c.rows for c in straight.clients], rtol=0, atol=0)


def test_a_client_that_was_away_keeps_its_moving_average():
    federation = ArrayFederation(WITH_MEMORY, SCENARIOS["one task for all"])
    federation.round()
    average = federation.state.kept[SlotKey("c0", ENCODER)]
    federation.round(lambda replies: replies[1:])
    assert federation.state.kept[SlotKey("c0", ENCODER)] == average


@pytest.mark.parametrize(
    ("name", "settings", "other"),
    [
        ("upgrad", {"weighting": "mean"}, "fedper"),
        ("fedhca2", {"alpha": 0, "beta": 0, "learn": False}, "local"),
        ("matfl", {"clusters": 1}, "fedper"),
    ],
)
@brief
@given(scenario=scenarios)
def test_with_these_settings_a_method_is_another(name, settings, other, scenario):
    actual, expected = (ArrayFederation(each, *scenario) for each in (resolve(name, settings), METHODS[other]))
    for client, other in zip(actual.clients, expected.clients, strict=True) if name == "upgrad" else ():
        client.rows[ENCODER] = other.rows[ENCODER] = actual.clients[0].rows[
            ENCODER
        ]  # which all have, and add updates to
    exact = {"rtol": 1e-5, "atol": 1e-6} if name == "upgrad" else {"rtol": 0, "atol": 0}
    assert_same(actual.run(3), expected.run(3), **exact)


@pytest.mark.parametrize("name", [name for name in METHODS if METHODS[name].all_aggregators])
def test_a_broken_reply_counts_as_an_absent_client_and_a_repeated_one_once(name):
    """With one fault of many: all are in the tests of the guard, which does not look at the method."""
    sites_of_all = SCENARIOS["a client with every task"]
    without, altered = (ArrayFederation(METHODS[name], sites_of_all) for _ in range(2))
    for federation in (without, altered):
        federation.round()

    def broken(replies):
        rows = {slot: torch.full_like(row, torch.nan) for slot, row in replies[0].rows.items()}
        return [replace(replies[0], rows=rows), *replies[1:], *replies[1:]]

    without.round(lambda replies: replies[1:])
    altered.round(broken)
    assert_same([c.rows for c in altered.clients], [c.rows for c in without.clients], rtol=0, atol=0)
