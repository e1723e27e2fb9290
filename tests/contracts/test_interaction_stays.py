"""An interaction stays with its client: no message has it, no method mixes it, and it trains as the decoders do."""

from functools import cache

import pytest
from real_federation import RecordedFleet

from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.messages import Order
from fedhca2.methods import METHODS
from fedhca2.run_folder.records import Watcher
from small import MECHANISMS, unifying
from small_run import SETTINGS, clients_of, small

CLIENT = "home"
HEADS = {"name": "fedsta", **unifying(every=1)}  # which also shares decoders and heads
FORMS = {name: {"name": name} for name in MECHANISMS} | {"fedsta with heads": HEADS}
every_method = pytest.mark.parametrize("form", FORMS)


def members(form, interaction="cross_attention"):
    experiment = small(FORMS[form], model={**SETTINGS["model"], "interaction": interaction}, rounds=2)
    return experiment, clients_of(experiment)


def interactions(client):
    """The values of the interactions of all its models."""
    tensors = client.state().tensors
    return {name: tensor.clone() for name, tensor in tensors.items() if "/model/interaction." in name}


@cache
def turns(form):
    experiment, clients = members(form)
    fleet = RecordedFleet(clients.values(), interactions)
    run_rounds(Server(experiment.resolved_method, fleet.profiles.values()), fleet, 2, 0, Watcher())
    return fleet.turns[CLIENT][:2]


def same(one, other):
    return all(tensor.equal(other[name]) for name, tensor in one.items())


def test_the_server_knows_nothing_of_it():
    (_, clients), (_, without) = members("fedhca2"), members("fedhca2", None)
    assert interactions(clients[CLIENT])
    assert {name: client.profile for name, client in clients.items()} == {
        name: client.profile for name, client in without.items()
    }


@every_method
def test_a_reply_has_the_rows_that_it_has_without_it(form):
    _, clients = members(form, None)
    for number, turn in enumerate(turns(form)):
        without = clients[CLIENT].perform(Order(number, upload=turn.order.upload))
        assert {slot: len(row) for slot, row in turn.reply.rows.items()} == {
            slot: len(row) for slot, row in without.rows.items()
        }


@every_method
def test_the_server_does_not_change_it(form):
    assert all(same(turn.before, turn.received) for turn in turns(form))


@every_method
def test_it_trains_unless_decoders_are_frozen(form):
    frozen = "decoder" in METHODS[FORMS[form]["name"]].local.frozen
    assert [same(turn.received, turn.after) for turn in turns(form)] == [frozen] * 2


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
