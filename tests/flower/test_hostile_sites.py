"""Hostile sites with real keys at a real SuperLink: what they send costs them their round, and harms no one else.

Attacks are played on a server that runs one round after the other, two honest sites, and the hostile one.
"""

import json
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import NamedTuple
from unittest.mock import patch

import httpx
import pytest
import torch
from deployment import Deployment
from federations import SWIN, fleet_of, in_memory, peak, reset_peak, small_experiment
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode
from flwr.proto.message_pb2 import PullObjectRequest
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from hostile import ATTACKS, ATTACKS_IN_PROFILES, ATTACKS_IN_REPLIES, STEERING, Letter, Node, name_of, obliging, working

from fedhca2.federation.flower import site_registry
from fedhca2.federation.flower.deploy.superlink import OperatorInterceptor
from fedhca2.federation.flower.fleet import FlowerFleet
from fedhca2.federation.flower.records import salt, unsalt
from fedhca2.federation.flower.wait import Wait
from fedhca2.federation.gate import plain
from fedhca2.federation.guard import Guard, Reach
from fedhca2.federation.server import Server
from fedhca2.messages import Order

pytestmark = [pytest.mark.slow, pytest.mark.attack]
HONEST, HOSTILE, OTHER = ("outdoor-semseg", "outdoor-normals"), "home", "shop"
CLIENTS = [
    {"data": "outdoor", "split": ["semseg", "normals"]},
    {"name": HOSTILE, "data": "indoor", "tasks": ["depth", "normals"]},
    {"name": OTHER, "data": "outdoor", "tasks": ["sal", "edge"]},
]
Send = Callable[[Message, Letter], object]  # answers a message, given what an honest site would answer


class Outcome(NamedTuple):
    """The outcome of an attack in words, and the others' distance from their models without the attacker."""

    found: str
    drift: float = 0.0


def relative_drift(found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]) -> float:
    """|found − expected| / |expected| over all these rows together."""
    there, absent = torch.cat([*found]).double(), torch.cat([*expected]).double()
    return float((there - absent).norm() / absent.norm())


def node(deployment: Deployment, name: str) -> Node:
    """A node at the SuperLink itself: the server must also withstand what the proxy would refuse."""
    operator = OperatorInterceptor(deployment.keys / "secret")
    return Node(deployment.link.address, deployment.keys / "sites" / name, operator)


class Stage:
    """A server, two honest sites that answer on their own, and a hostile one that has introduced itself."""

    def __init__(self, deployment: Deployment, grid, hostile: Node, folder: Path) -> None:
        self.deployment, self.grid, self.hostile, self.folder = deployment, grid, hostile, folder
        self.experiment = deployment.experiment
        self.app = obliging(self.experiment, HOSTILE)
        self.fleet = self.meet(lambda message, good: hostile.send(message, good.sent()))
        self.taken = 0.0  # MB that the last round added to the most memory that this process ever had
        self.round(lambda message, good: hostile.send(message, good.sent()))  # what is loaded once is loaded now

    def meet(self, send: Send) -> FlowerFleet:
        """A server that knows all three sites; `send` is the hostile site's introduction."""
        fleet = fleet_of(self.grid, self.experiment, self.folder, min_clients=2, retries=0)
        with self._answering(send):
            while len(fleet.registry.profiles) + len(fleet.registry.refused) < 3:
                fleet.registry.poll(Wait(60))
        return fleet

    def introduce(self, send: Send) -> Outcome:
        """The outcome of a hostile introduction."""
        refused = self.meet(send).registry.refused
        return Outcome(f"refused: {refused[HOSTILE]}" if HOSTILE in refused else "taken in")

    def round(self, send: Send, deadline: float = 60) -> Outcome:
        """The outcome of a round in which the hostile site sends this as its reply."""
        self.fleet.terms = self.fleet.terms.model_copy(update={"deadline": deadline})
        orders = {name: Order(0, upload=self.experiment.resolved_method.uploads(0)) for name in (*HONEST, HOSTILE)}
        reset_peak()
        began, before = monotonic(), peak()
        with self._answering(send):
            replies = self.fleet.perform(orders, lambda *_: None)
            seconds, self.taken = monotonic() - began, peak() - before
        rows, refused = self._mixed(replies.values())
        absent, _ = self._mixed(replies[name] for name in HONEST)
        why = self.fleet.absent.get(HOSTILE) or refused.get(HOSTILE)
        assert seconds < deadline + 1, f"the round should end after {deadline} s, found {seconds:.1f}"
        assert why is None or why == plain(why)
        return Outcome(f"refused: {why}" if why else "used", relative_drift(rows, absent))

    def _mixed(self, replies):
        """What the honest sites are sent after these replies, and what was refused."""
        server = Server(self.experiment.resolved_method, self.fleet.profiles.values())
        guard = Guard(server, self.experiment.guard, Reach.of(self.experiment))
        _, deliveries, record = guard.step(server.start(), replies)
        rows = [
            addend.scale[0] * addend.row
            for name in HONEST
            for _, delivery in sorted(deliveries[name].items())
            for addend in delivery.addends
        ]
        return rows, record.refused

    @contextmanager
    def _answering(self, send: Send):
        """Let the hostile site answer the next message while the server works."""

        def answer():
            message = self.hostile.receive()
            with suppress(httpx.HTTPError, RuntimeError):  # the server may have lost its patience
                send(message, Letter.of(self.app(message).content))

        while self.hostile.receive(0.01):  # what came after the last attack
            pass
        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        try:
            yield
        finally:
            thread.join()


@contextmanager
def stage(folder: Path):
    """The processes, and the honest sites."""
    with Deployment(folder, small_experiment(clients=CLIENTS)) as deployment, deployment.link.run() as grid:
        first, second = (working(node(deployment, name), obliging(deployment.experiment, name)) for name in HONEST)
        with first, second, node(deployment, HOSTILE) as hostile:
            yield Stage(deployment, grid, hostile, folder)


def reply(spoil, stage: Stage) -> Outcome:
    """An answer to an order, with a change."""
    return stage.round(lambda message, good: stage.hostile.send(message, spoil(good)))


def profile(spoil, stage: Stage) -> Outcome:
    """An introduction with a change."""
    return stage.introduce(lambda message, good: stage.hostile.send(message, spoil(good)))


def rows(change: Callable[[torch.Tensor], torch.Tensor]):
    """Other numbers instead of an update."""

    def spoil(good: Letter) -> list[bytes]:
        values = torch.frombuffer(unsalt(good.rows), dtype=torch.float32)
        return replace(good, rows=salt(change(values).numpy().view("u1").data)).sent()

    return spoil


def memory(spoil, stage: Stage) -> Outcome:
    """A reply that would fill the server's memory; the sender's own chunk and its copies are in this process too."""
    outcome = reply(spoil, stage)
    return outcome._replace(found=f"{outcome.found} ({'under' if stage.taken < 100 else 'over'} 100 MB)")


def failure(code: int, text: str, stage: Stage) -> Outcome:
    """An error instead of a reply, as Flower reports one."""
    return stage.round(lambda message, _: stage.hostile.fail(message, Error(code, text)))


def trickle(stage: Stage) -> Outcome:
    """A reply whose last object comes after the deadline."""
    return stage.round(lambda message, good: stage.hostile.send(message, good.sent(), pause=4, first=5), deadline=3)


def pose(stage: Stage) -> Outcome:
    """The holder of another key claims to be `home`; it is offline when the server looks, and back for its answer."""
    grid, experiment = stage.grid, stage.experiment
    with patch.object(site_registry, "NODES_EVERY", 3600.0), node(stage.deployment, OTHER) as thief:
        fleet = fleet_of(grid, experiment, stage.folder)
        fleet.registry.poll(Wait(60))
        message = thief.receive()
        thief.reply(message, obliging(experiment, HOSTILE)(message).content)
        thief.deactivate()
        fleet.registry.check_nodes(now=True)
        thief.activate()
        wait = Wait(10)
        while not wait.is_over and OTHER not in fleet.registry.refused:
            fleet.registry.poll(wait)
        return Outcome(
            f"refused: {fleet.registry.refused[OTHER]}" if HOSTILE not in fleet.registry.profiles else "taken in"
        )


def guess(stage: Stage) -> Outcome:
    """Flower accepts an answer from anyone who knows the message's name: the hash of its content."""
    with node(stage.deployment, OTHER) as site:
        fleet_of(stage.grid, stage.experiment, stage.folder).registry.poll(Wait(60))
        message = site.receive()
        copy = Message(message.content, site.number, "query", ttl=message.metadata.ttl)
        copy.metadata.created_at = message.metadata.created_at
        return Outcome("guessed" if copy.object_id == message.metadata.message_id else "refused: the name is random")


POISON = {
    "an update of NaN": lambda update: update * torch.nan,
    "an update of 3e38": lambda update: torch.full_like(update, 3e38),
    "an update of 1e6": lambda update: torch.full_like(update, 1e6),
    "an update a million times as long": lambda update: 1e6 * update,
}
GONE, RAISED = ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_RAISED_EXCEPTION
REFUSED = "^refused: "
LATE, TOLD = r"^refused: no reply in time", r"^refused: failed: .{,500}$"
SHORT_OF_MEMORY = r"^refused: .*\(under 100 MB\)$"
OTHERS_NAME = "client of shop: expected 'shop', got 'home'"
LONG = STEERING.replace("\ud800", "") * 10_000


def attack(name, play, expected=REFUSED, long=False):
    """What an adversary can do, and a pattern of the outcome; a `long` one is only played by `make attack`."""
    return pytest.param(name, play, expected, id=name, marks=[pytest.mark.long] if long else [])


PLAYED = [
    *(
        attack(name, partial(memory, spoil), SHORT_OF_MEMORY) if "5 GB" in name else attack(name, partial(reply, spoil))
        for name, spoil in ATTACKS_IN_REPLIES.items()
    ),
    *(
        attack(f"{name}, in a profile", partial(profile, spoil), long=name in ATTACKS)
        for name, spoil in ATTACKS_IN_PROFILES.items()
    ),
    *(attack(name, partial(reply, rows(change))) for name, change in POISON.items()),
    attack("a reply that trickles", trickle, LATE),
    attack("a failure told at length", partial(failure, RAISED, LONG), TOLD),
    attack("a failure that Flower alone may tell", partial(failure, GONE, "gone"), "^refused: failed: gone$"),
    attack("another key says that it is home", pose, OTHERS_NAME),
    attack("the name of another site's message", guess),
]


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    with stage(tmp_path_factory.mktemp("stage")) as found:
        yield found


def test_a_good_reply_of_the_same_node_is_used(federation):
    outcome = reply(Letter.sent, federation)
    assert (outcome.found, outcome.drift <= 1.0) == ("used", True)


@pytest.mark.parametrize(("name", "play", "expected"), PLAYED)
def test_a_hostile_site_harms_itself_alone(name, play, expected, federation, tell):
    outcome = play(federation)
    tell("hostile site", name, *outcome)
    assert re.search(expected, outcome.found)
    assert outcome.drift == 0


def is_stored(node, run, name):
    return node.client.PullObject(PullObjectRequest(node=node.node, run_id=run, object_id=name)).object_found


def test_a_superlink_keeps_neither_the_order_of_a_silent_site_nor_a_late_answer(federation):
    got = []
    federation.round(lambda message, good: got.append((message, good)), deadline=2)
    [(message, good)] = got
    run, arrays = message.metadata.run_id, [*get_all_nested_objects(message)]
    assert not [name for name in arrays if is_stored(federation.hostile, run, name)]
    late = good.sent()
    federation.hostile.send(message, late)
    assert is_stored(federation.hostile, run, name_of(late[0]))
    federation.round(lambda message, good: federation.hostile.send(message, good.sent()))
    assert not [content for content in late if is_stored(federation.hostile, run, name_of(content))]


IN_TURN = ["a header nested 200,000 deep", "5 GB in one chunk", "seconds of 10**400", "a failure in 500,000 letters"]


@pytest.mark.long
def test_a_whole_run_leaves_the_others_where_they_would_be_without_a_hostile_site(tmp_path, tell):
    """The server and the honest sites are processes, and each round is another attack, ending with the scores."""
    experiment = small_experiment(model=SWIN, rounds=len(IN_TURN))
    with Deployment(tmp_path, experiment) as deployment, node(deployment, HOSTILE) as hostile:
        app = obliging(experiment, HOSTILE)
        for name in HONEST:
            deployment.start_site(name)
        serve = deployment.serve(
            deployment.config, tmp_path / "run", "--min-clients", "2", "--retries", "0", "--deadline", "240"
        )
        while serve.poll() is None:
            if message := hostile.receive(0.5):
                good = Letter.of(app(message).content)
                round = good.header.get("round", -1)  # an introduction has none
                spoil = ATTACKS_IN_REPLIES[[*IN_TURN, "metrics of unknown tasks"][round]] if round >= 0 else Letter.sent
                hostile.send(message, spoil(good))
        assert serve.returncode == 0, deployment.log("serve")
        result = json.loads((tmp_path / "run" / "result.json").read_text())
        found = deployment.models(tmp_path / "run", HONEST)
        expected, _ = in_memory(experiment, without=HOSTILE)
        there = [found[name][key].flatten() for name in HONEST for key in expected[name]]
        drift = relative_drift(there, [row.flatten() for name in HONEST for row in expected[name].values()])
        tell("hostile site", "a whole run, an attack in every round", f"done; {result['missing'][HOSTILE]}", drift)
        assert drift == 0.0
