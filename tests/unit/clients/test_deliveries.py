"""How a client handles rows it should not accept, from a hostile server or from a hostile client through the server."""

import json
from dataclasses import replace
from functools import cache
from math import inf, nan

import pytest
import torch

from fedhca2.experiment.settings import GuardBounds
from fedhca2.federation.guard import Guard, Reach
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.messages import Addend, Delivery, Order, Reply
from fedhca2.params import Slot
from fedhca2.run_folder.event_log import START, EventLog
from small_run import Silent, clients_of, small

ENCODER, DECODER = Slot("encoder"), Slot("decoder", "semseg")
HONEST, HOSTILE = "road", "shop"
VALUES = [1e6, 1e9, 1e12, 1e15, 1e18, 1e19, 1e24, 1e30, 1e36, 1e38, 3e38, -3e38, nan, inf]
UNGUARDED = GuardBounds(reach=0, jump=0)


def two(method):
    clients = [{"name": HONEST, "data": "outdoor", "tasks": ["semseg"]}]
    return small(method, rounds=3, clients=[*clients, {"name": HOSTILE, "data": "outdoor", "tasks": ["semseg"]}])


class Two:
    """An honest client, and one that after the first round fills its rows with a value or stays away."""

    def __init__(self, experiment, value):
        self.absent = {}
        self.clients, self.value = clients_of(experiment), value
        self.honest = self.clients[HONEST]
        self.declined = []

    @property
    def profiles(self):
        return {name: client.profile for name, client in self.clients.items()}

    def perform(self, orders, watch):
        replies = {name: self.clients[name].perform(orders[name]) for name in orders}
        self.declined += [replies[HONEST].declined] if replies[HONEST].declined else []
        if orders[HOSTILE].round and orders[HOSTILE].train:
            bad = replies.pop(HOSTILE)
            if self.value is not None:
                rows = {slot: torch.full_like(row, self.value) for slot, row in bad.rows.items()}
                replies[HOSTILE] = replace(bad, rows=rows)
        return replies


def federate(method, value, guard=None, watcher=None):
    experiment = two(method)
    fleet = Two(experiment, value)
    server = Server(experiment.resolved_method, fleet.profiles.values())
    guard = Guard(server, guard or GuardBounds(), Reach.of(experiment))
    run_rounds(server, fleet, experiment.rounds, 0, watcher or Silent(), guard=guard)
    return fleet


def tensors(client):
    return client.personal.model.state_dict()


def same(one, other):
    return all(tensor.equal(other[name]) for name, tensor in one.items())


@cache
def without(method):
    """The honest client's model in a federation whose other client stays away after the first round."""
    return tensors(federate(method, None).honest)


@cache
def on_its_own(method):
    """The honest client's model after a first round with the other, whose result it accepts, and two rounds alone."""
    experiment = two(method)
    fleet = Two(experiment, None)
    server = Server(experiment.resolved_method, fleet.profiles.values())
    upload = experiment.resolved_method.uploads(0)
    replies = [client.perform(Order(0, upload=upload)) for client in fleet.clients.values()]
    _, deliveries, _ = server.step(server.start(), replies)
    fleet.honest.perform(Order(1, deliveries[HONEST], upload=upload))
    fleet.honest.perform(Order(2, upload=upload))
    return tensors(fleet.honest)


@pytest.mark.slow
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("method", ["fedhca2", "fedavg"])
def test_the_honest_client_of_two_is_as_if_the_other_were_away_and_without_a_guard_trains_on_by_itself(method, value):
    assert same(tensors(federate(method, value).honest), without(method))
    if abs(value) < inf:
        fleet = federate(method, value, UNGUARDED)
        assert len(fleet.declined) == 2
        assert same(tensors(fleet.honest), on_its_own(method))


@pytest.fixture(scope="module")
def trained():
    """A client's state after a round."""
    client = clients_of(small())[HONEST]
    client.perform(Order(0, upload={"encoder": "updates"}))
    return client.state()


@pytest.fixture
def client(trained):
    restored = clients_of(small())[HONEST]
    restored.restore(trained)
    return restored


def row(client, value, slot=ENCODER):
    return torch.full((client.layouts[slot].numel,), value)


def order(addend, base="trained", slot=ENCODER, **rest):
    return Order(1, {slot: Delivery(base, (addend,))}, **{"train": False, **rest})


@pytest.mark.parametrize("base", ["trained", "start", "nothing"])
@pytest.mark.parametrize("value", VALUES)
def test_rows_that_no_training_makes_are_not_taken(client, value, base):
    before = client.state().tensors
    reply = client.perform(order(Addend(row(client, value)), base))
    assert reply.declined.startswith("its rows were not taken: encoder: expected")
    assert same(client.state().tensors, before)


MISFITS = {
    "a scale of NaN": lambda client: order(Addend(row(client, 1e-3), (nan,))),
    "a scale of 1e300": lambda client: order(Addend(row(client, 1e-3), (1e300,))),
    "a scale of 1e30": lambda client: order(Addend(row(client, 1e-3), (1e30,))),
    "NaN that nothing is made of": lambda client: order(Addend(row(client, nan), (0.0,))),
    "sums that overflow": lambda client: order(Addend(row(client, 3e38), (2.0,))),
    "a short row": lambda client: order(Addend(row(client, 1e-3)[1:])),
    "whole numbers": lambda client: order(Addend(row(client, 0.0).int())),
    "a scale for each of three": lambda client: order(Addend(row(client, 1e-3), (1.0,) * 3)),
    "a task of another": lambda client: order(Addend(row(client, 1e-3)), slot=Slot("decoder", "depth")),
    "a base that is not there": lambda client: order(Addend(row(client, 1e-3, DECODER)), "start", DECODER),
    "no base at all": lambda client: order(Addend(row(client, 1e-3)), "everything"),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_not_taken(client, misfit):
    before = client.state().tensors
    assert client.perform(MISFITS[misfit](client)).declined
    assert same(client.state().tensors, before)


def test_of_several_rows_all_are_taken_or_none(client):
    before = client.state().tensors
    good, bad = (
        order(Addend(row(client, value, slot)), slot=slot) for value, slot in ((1e-3, ENCODER), (nan, DECODER))
    )
    client.perform(replace(good, deliveries={**good.deliveries, **bad.deliveries}))
    assert same(client.state().tensors, before)


def test_a_client_that_declines_trains_on_from_its_own_model(client, trained):
    reply = client.perform(order(Addend(row(client, nan)), train=True, upload={"encoder": "updates"}))
    alone = clients_of(small())[HONEST]
    alone.restore(trained)
    expected = alone.perform(Order(1, upload={"encoder": "updates"}))
    assert reply.rows[ENCODER].equal(expected.rows[ENCODER])


def test_a_client_that_diverges_goes_back_to_before_it_took_anything(client):
    before = client.state().tensors
    client.training = client.training.model_copy(update={"learning_rate": 1e38})
    reply = client.perform(order(Addend(row(client, 1e-3)), train=True, upload={"encoder": "updates"}))
    assert (bool(reply.failed), reply.declined, dict(reply.rows)) == (True, "", {})
    assert same(client.state().tensors, before)


def test_limits_depend_on_declared_noise_and_not_on_what_a_client_has_learned(client):
    """Otherwise the server could learn from what is declined."""
    fresh, noisy = clients_of(small())[HONEST], clients_of(small(guard={"noise": 100.0}))[HONEST]
    assert client.exchange.longest(ENCODER, 5) == fresh.exchange.longest(ENCODER, 5)
    assert not noisy.perform(order(Addend(row(noisy, 100.0)), "nothing")).declined


def test_the_record_says_what_was_declined(tmp_path):
    log = EventLog(tmp_path, START)
    federate("fedhca2", 1e30, UNGUARDED, log)
    log.close()
    events = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    declined = [(event["round"], event["client"]) for event in events if event["event"] == "declined"]
    assert declined[0] == (2, HONEST)
    assert {client for _, client in declined} == {HONEST, HOSTILE}


def test_the_bytes_of_a_reply_count_its_reason_for_declining():
    assert Reply("a", 0, declined="nó").nbytes == 3
