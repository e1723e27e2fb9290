"""With every method, an interaction stays with its client, and clipping and noise work."""

import pytest
import torch

from fedhca2.federation.guard import Guard
from fedhca2.federation.server import Server
from fedhca2.messages import Order
from fedhca2.methods import METHODS
from small import MECHANISMS, unifying
from small_run import SETTINGS, clients_of, small

CLIENT = "home"
HEADS = {"name": "fedsta", **unifying(every=1)}  # which also shares decoders and heads
FORMS = {name: {"name": name} for name in MECHANISMS} | {"fedsta with heads": HEADS}


def members(form, interaction="cross_attention"):
    experiment = small(FORMS[form], model={**SETTINGS["model"], "interaction": interaction}, rounds=2)
    return experiment, clients_of(experiment)


def interactions(client):
    """The values of the interactions of all its models."""
    tensors = client.state().tensors
    return {name: tensor.clone() for name, tensor in tensors.items() if "/model/interaction." in name}


def rounds_of(form):
    """Of a client with several tasks, replies and interactions: before a round, after it took rows, and at the end."""
    experiment, clients = members(form)
    server = Server(experiment.resolved_method, [client.profile for client in clients.values()])
    state, deliveries = server.start(), {}
    for number in range(2):
        before = interactions(clients[CLIENT])
        for name, client in clients.items():
            client.perform(Order(number, deliveries.get(name, {}), train=False))
        received, upload = interactions(clients[CLIENT]), experiment.resolved_method.uploads(number)
        replies = {name: client.perform(Order(number, upload=upload)) for name, client in clients.items()}
        yield replies[CLIENT], before, received, interactions(clients[CLIENT])
        state, deliveries, _ = server.step(state, replies.values())


def same(one, other):
    return all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("form", FORMS)
def test_an_interaction_is_never_sent_and_trains_unless_decoders_are_frozen(form):
    experiment, clients = members(form, None)
    own = members(form)[1]
    assert interactions(own[CLIENT])
    assert {name: each.profile for name, each in own.items()} == {name: each.profile for name, each in clients.items()}
    frozen = "decoder" in METHODS[FORMS[form]["name"]].local.frozen
    for number, (reply, before, received, after) in enumerate(rounds_of(form)):
        without = clients[CLIENT].perform(Order(number, upload=experiment.resolved_method.uploads(number)))
        rows, others = ({slot: len(row) for slot, row in each.rows.items()} for each in (reply, without))
        assert rows == others
        assert (same(before, received), same(received, after)) == (True, frozen)


@pytest.mark.parametrize("method", ["fedhca2", "ditto"])
def test_a_client_restores_it_with_its_moments(method):
    clients = [members(method)[1][CLIENT] for _ in range(2)]
    clients[0].perform(Order(0))
    clients[1].restore(clients[0].state())
    for client in clients:
        client.perform(Order(1))
    one, other = (client.state().tensors for client in clients)
    assert any("/optimizer/" in name and "/interaction." in name for name in one)
    assert one.keys() == other.keys()
    assert same(one, other)


CLIP, NOISE = 0.01, 0.02


def what_the_server_knows(client, deliveries):
    """Rows by slot: the initial ones, then what a client sent last or was sent instead."""
    rows = dict(client.exchange.published) or client.rows(client.layouts)
    if client.objective.anchor != "received":
        for slot, delivery in deliveries.items():
            if delivery.base == "nothing":
                rows[slot] = sum(addend.scale[0] * addend.row for addend in delivery.addends)
    return rows


@pytest.mark.slow
@pytest.mark.parametrize("method", MECHANISMS)
def test_every_method_takes_part_with_clipped_and_noised_rows(method):
    experiment = small(method, privacy={"clip": CLIP, "noise": NOISE})
    members = clients_of(experiment)
    server = Server(experiment.resolved_method, [client.profile for client in members.values()])
    state, deliveries = server.start(), {name: {} for name in members}
    for number in range(2):
        uploads = experiment.resolved_method.uploads(number)
        published = {name: what_the_server_knows(client, deliveries[name]) for name, client in members.items()}
        replies = {
            name: client.perform(Order(number, deliveries[name], upload=uploads)) for name, client in members.items()
        }
        state, sent, record = Guard(server).step(state, replies.values())
        deliveries = {name: sent.get(name, {}) for name in members}
        assert record.refused == {}
        for name, reply in replies.items():
            changes = [
                row if uploads[slot.part] == "updates" else row - published[name][slot]
                for slot, row in reply.rows.items()
            ]
            numel = sum(change.numel() for change in changes)
            length = float(torch.cat(changes).norm()) if changes else 0.0
            assert length <= CLIP * (1 + 1.1 * NOISE * numel**0.5)
