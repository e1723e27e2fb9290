"""`fedhca2 flower serve` with its defaults, under attack: strangers and a registered site try whatever they can."""

import json
import re
import socket
import threading
import time
from contextlib import ExitStack

import pytest
from deployment import serving, wait_for
from federations import SWIN, small_experiment
from flwr.proto.fleet_pb2 import PullMessagesRequest, PushMessagesResponse
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import Node as FlowerNode
from flwr.supercore.inflatable.inflatable_object import iterate_object_tree
from hostile import Node, obliging, working
from strangers import ANYBODY, CONTROL, FLEET, PULL, PUSH, SITES, Visitor, is_refused, outcome_of, posing
from strangers import name as object_name

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.link import make_keys, make_site_keys
from fedhca2.federation.flower.deploy.superlink import TOKEN, SuperLink, operator_token
from fedhca2.federation.flower.records import header_of

pytestmark = [pytest.mark.slow, pytest.mark.attack]
HONEST, HOSTILE = ["outdoor-semseg", "outdoor-normals"], "home"
QUOTA = 30_000_000


class Siege:
    """A run whose honest sites wait with their first replies until the attacks are over."""

    def __init__(self, folder, stack) -> None:
        self.folder, self.out, self.keys = folder, folder / "run", folder / "keys"
        experiment = small_experiment(rounds=1, model=SWIN)
        make_keys(self.keys, [spec.name for spec in experiment.specs])
        options = ["--quota", QUOTA, "--min-clients", "2", "--deadline", "300"]
        self.command, self.public, at = stack.enter_context(serving(folder, experiment, self.keys, *options))
        self.link = SuperLink(at, self.keys)
        self.over, self._runs = threading.Event(), []
        for name in HONEST:
            app = self._wait_with_orders(obliging(experiment, name))
            stack.enter_context(working(Node(self.public, self.keys / "sites" / name), app))
        stack.callback(self.over.set)
        wait_for(lambda: len(self._runs) >= 2)
        self.nodes = {one.name: one.node_id for one in self.link.registrations()}

    def _wait_with_orders(self, app):
        def answer(message, context):
            if "order" in header_of(message.content):
                self._runs.append(message.metadata.run_id)
                self.over.wait()
            return app(message)

        return answer

    def visitor(self, **changes) -> Visitor:
        victim = HONEST[0]
        public_key = self.keys / "sites" / victim / "node.pub"
        defaults = {"victim": self.nodes[victim], "victim_key": public_key, "run": self._runs[0]}
        return Visitor(**{"address": self.public, "ca": self.keys / "ca.crt", **defaults, **changes})

    def site(self, **changes) -> Visitor:
        return self.visitor(node=self.nodes[HOSTILE], key=self.keys / "sites" / HOSTILE / "node.key", **changes)

    def log(self) -> str:
        return (self.folder / "run.link" / "proxy.log").read_text()


@pytest.fixture(scope="module")
def siege(tmp_path_factory):
    with ExitStack() as stack:
        yield Siege(tmp_path_factory.mktemp("siege"), stack)


@pytest.mark.parametrize("attack", ANYBODY)
def test_a_stranger_is_refused(attack, siege, tell):
    answer = ANYBODY[attack](siege.visitor())
    tell("stranger", attack, outcome_of(answer))
    assert is_refused(answer)
    assert is_refused(ANYBODY[attack](siege.site()))  # also with a site's key


@pytest.mark.parametrize("attack", SITES)
def test_a_site_is_refused(attack, siege, tell):
    answer = SITES[attack](siege.site())
    tell("hostile site", attack, outcome_of(answer))
    assert is_refused(answer)


@pytest.mark.parametrize("attack", [name for name in SITES if name != "a signature of an hour ago"])
def test_an_unregistered_key_is_refused_by_the_proxy(attack, siege, tmp_path):
    make_site_keys(tmp_path / "unknown", b"")
    assert is_refused(SITES[attack](siege.visitor(key=tmp_path / "unknown" / "node.key", node=1)))


def test_refusals_are_in_the_log_with_the_node_and_the_reason(siege):
    siege.site().post(PUSH, posing(siege.site()))
    line = rf"refused {HOSTILE} \(node {siege.nodes[HOSTILE]}\), POST {PUSH}: sender: expected"
    assert re.search(line, siege.log())


def test_an_answer_whose_objects_are_in_another_tree_is_refused_and_its_site_named(siege):
    """A SuperLink would never release the objects below, or would wait for them before it hands out an order."""
    site = siege.site()
    with Node(siege.public, siege.keys / "sites" / HOSTILE) as node:
        request = PullMessagesRequest(node=node.node)
        found = wait_for(lambda: (pulled := node.client.PullMessages(request)).messages_list and pulled)
        order = found.message_object_trees[0]
        own = ObjectTree(object_id=object_name("own"), children=[ObjectTree(object_id=object_name("leaf"))])
        first = site.push(own, reply_to_message_id=order.object_id)
        assert PushMessagesResponse.FromString(site.post(PUSH, first).content).objects_to_push
        for leaf in (next(iterate_object_tree(order)).object_id, object_name("leaf")):
            below = ObjectTree(object_id=leaf, children=[ObjectTree(object_id=object_name("below"))])
            tree = ObjectTree(object_id=object_name(leaf), children=[below])
            answer = site.post(PUSH, site.push(tree, reply_to_message_id=order.object_id))
            assert (answer.status_code, "new objects" in answer.text) == (403, True)
    assert re.search(rf"refused {HOSTILE} .*new objects", siege.log())


def test_without_the_proxy_the_superlink_accepts_an_order_of_a_site(siege):
    """Why the proxy checks messages: without it, the receiver would get this one."""
    token = {TOKEN: operator_token((siege.keys / "secret").read_bytes())}
    with Node(siege.public, siege.keys / "sites" / HOSTILE):
        site = siege.site(address=siege.link.address, headers=token, victim=siege.nodes[HOSTILE])
        answer = site.post(PUSH, posing(site))
    assert PushMessagesResponse.FromString(answer.content).objects_to_push


@pytest.mark.parametrize("path", [f"{CONTROL}/list-nodes", PULL, "/health"])
def test_another_user_of_the_machine_is_refused_by_the_superlink(path, siege):
    assert siege.site(address=siege.link.address).post(path).status_code == 403


OTHER_PORT = "404 Not Found; sites connect to another port than operators"


@pytest.mark.parametrize(
    ("port", "what", "why"),
    [("own", "register", "already in use"), ("public", "register", OTHER_PORT), ("public", "evict", OTHER_PORT)],
)
def test_what_an_operator_cannot_do_is_an_error_in_one_line(siege, port, what, why):
    link = siege.link if port == "own" else SuperLink(siege.public, siege.keys)
    keys = [siege.keys / "sites" / HOSTILE / "node.pub"] if what == "register" else []
    with pytest.raises(UserError) as refused:
        getattr(link, what)(HOSTILE, *keys)
    [fault] = refused.value.faults
    assert (fault.where, why in fault.message) == (link.address, True)


def test_a_node_from_an_earlier_superlink_must_activate_again(siege):
    """Flower's SuperNode ends on 401; on 403 it would go on asking with the old number."""
    answer = siege.site().post(PULL, PullMessagesRequest(node=FlowerNode(node_id=7)))
    assert answer.status_code == 401


def test_connections_that_say_nothing_keep_nobody_out(siege):
    host, port = siege.public.rsplit(":", 1)
    with ExitStack() as stack:
        for _ in range(400):
            stack.enter_context(socket.create_connection((host, int(port)), 5))
        began = time.monotonic()
        assert siege.site().post(f"{FLEET}/get-run").status_code == 403  # its node is missing: it was read
        assert time.monotonic() - began < 5


def test_the_federation_goes_on_and_its_record_has_every_key(siege):
    siege.link.evict(HOSTILE)
    siege.over.set()
    code, output = siege.command.wait(120)
    assert code == 0, output
    assert set(json.loads((siege.out / "result.json").read_text())["clients"]) == set(HONEST)
    events = [json.loads(line) for line in (siege.out / "metrics.jsonl").read_text().splitlines()]
    record = [(event["event"], event["client"]) for event in events if event["event"] in ("registered", "evicted")]
    assert record == [*(("registered", name) for name in (*HONEST, HOSTILE)), ("evicted", HOSTILE)]
    evictions = [event for event in events if event["event"] == "evicted"]
    assert evictions[0]["key"].startswith("SHA256:")
    assert evictions[0]["time"]
