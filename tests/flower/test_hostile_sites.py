"""Hostile sites with real keys at a real SuperLink: what they send costs them their round, and nobody else anything."""

import threading
from contextlib import suppress
from pathlib import Path
from time import monotonic

import httpx
import pytest
from deployment import Deployment
from federations import small_experiment
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from hostile import ATTACKS, STEERING, Letter, Node, obliging

from fedhca2.federation.flower import roll
from fedhca2.federation.flower.control import OperatorInterceptor
from fedhca2.federation.flower.fleet import FlowerFleet
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.flower.wait import Wait
from fedhca2.federation.gate import plain
from fedhca2.messages import Order

pytestmark = pytest.mark.slow
HONEST, HOSTILE, OTHER = "outdoor-semseg", "home", "outdoor-normals"


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    with Deployment(tmp_path_factory.mktemp("hostile"), small_experiment()) as found:
        yield found


def node(deployment, name):
    """A node at the SuperLink itself: the server is safe from what the proxy would have refused, too."""
    operator = OperatorInterceptor(deployment.keys / "secret")
    return Node(deployment.link.address, deployment.keys / "sites" / name, operator)


@pytest.fixture(scope="module")
def federation(deployment, tmp_path_factory):
    """A server, an honest site that answers by itself, and a hostile one that has introduced itself."""
    stop, introduced = threading.Event(), threading.Event()
    experiment, terms = deployment.experiment, Terms(min_clients=1, retries=0, deadline=60)
    with deployment.link.run() as grid, node(deployment, HONEST) as honest, node(deployment, HOSTILE) as hostile:
        fleet = FlowerFleet(grid, experiment, terms, "run1", tmp_path_factory.mktemp("run"))
        working = honest.serve(obliging(experiment, HONEST), stop)
        introducing = hostile.serve(obliging(experiment, HOSTILE), introduced)
        while len(fleet.roll.known) < 2:
            fleet.roll.meet(Wait(60))
        introduced.set()
        introducing.join()
        yield fleet, hostile
        stop.set()
        working.join()


def perform(federation, send, deadline=60):
    """A round in which the hostile site sends something for its reply; returns the replies, and how long it took."""
    fleet, hostile = federation
    fleet.terms = fleet.terms.model_copy(update={"deadline": deadline})
    upload = fleet.experiment.resolved_method.uploads(0)
    app = obliging(fleet.experiment, HOSTILE)

    def answer():
        message = hostile.receive()
        with suppress(httpx.HTTPError, RuntimeError):  # the server may have lost its patience
            send(message, Letter.of(app(message).content))

    threading.Thread(target=answer, daemon=True).start()
    began = monotonic()
    replies = fleet.perform({name: Order(0, upload=upload) for name in (HONEST, HOSTILE)}, lambda *_: None)
    return replies, monotonic() - began


def test_a_good_answer_of_the_same_node_passes(federation):
    _, hostile = federation
    replies, _ = perform(federation, lambda message, good: hostile.send(message, good.sent()))
    assert list(replies) == [HONEST, HOSTILE]


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_hostile_reply_costs_its_site_the_round(attack, federation):
    fleet, hostile = federation
    replies, _ = perform(federation, lambda message, good: hostile.send(message, ATTACKS[attack](good)))
    assert list(replies) == [HONEST]
    assert fleet.absent[HOSTILE] == plain(fleet.absent[HOSTILE])


def peak():
    """The most memory that this process ever had, in MB."""
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]) / 1024


@pytest.mark.parametrize("attack", [name for name in ATTACKS if "5 GB" in name])
def test_repeated_chunks_take_no_memory(attack, federation):
    _, hostile = federation
    Path("/proc/self/clear_refs").write_text("5")
    before = peak()
    perform(federation, lambda message, good: hostile.send(message, ATTACKS[attack](good)))
    assert peak() - before < 100  # MB, the sender's own chunk and its copies among them


def test_a_failure_told_at_length_is_cut(federation):
    fleet, hostile = federation
    error = Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, STEERING.replace("\ud800", "") * 10_000)
    perform(federation, lambda message, _: hostile.fail(message, error))
    assert fleet.absent[HOSTILE] == plain(f"failed: {error.reason}")


def test_a_site_cannot_pretend_that_flower_lost_it(federation):
    fleet, hostile = federation
    perform(federation, lambda message, _: hostile.fail(message, Error(ErrorCode.NODE_UNAVAILABLE, "gone")))
    assert fleet.absent[HOSTILE] == "failed: gone"


def test_a_reply_that_trickles_does_not_outlast_the_deadline(federation):
    _, hostile = federation
    replies, took = perform(federation, lambda message, good: hostile.send(message, good.sent(), pause=2), deadline=4)
    assert list(replies) == [HONEST]
    assert took < 5


def test_who_is_away_when_the_server_looks_is_still_known_by_its_key(deployment, tmp_path, monkeypatch):
    """The holder of another key says that it is home, and is there whenever its answer can be read."""
    experiment = deployment.experiment
    monkeypatch.setattr(roll, "NODES_EVERY", 3600.0)
    with deployment.link.run() as grid, node(deployment, OTHER) as thief:
        fleet = FlowerFleet(grid, experiment, Terms(), "run1", tmp_path)
        fleet.roll.meet(Wait(60))
        message = thief.receive()
        thief.reply(message, obliging(experiment, HOSTILE)(message).content)
        thief.deactivate()
        fleet.roll._looked = float("-inf")
        fleet.roll._look()
        thief.activate()
        fleet.roll.meet(Wait(60))
        assert HOSTILE not in fleet.roll.known
        assert fleet.roll.refused == {OTHER: f"client of {OTHER} should be '{OTHER}', found '{HOSTILE}'"}


def test_a_message_of_another_site_cannot_be_guessed(deployment, tmp_path):
    """Flower takes an answer from whoever knows the name of the message: the hash of all that is in it."""
    with deployment.link.run() as grid, node(deployment, OTHER) as site:
        FlowerFleet(grid, deployment.experiment, Terms(), "run1", tmp_path).roll.meet(Wait(60))
        message = site.receive()
        guess = Message(message.content, site.number, "query", ttl=message.metadata.ttl)
        guess.metadata.created_at = message.metadata.created_at
        assert guess.object_id != message.metadata.message_id
