"""Sites that send whatever they like, with a key that the SuperLink knows.

A `Node` speaks with a real SuperLink as a SuperNode does, over TLS and with its key. It can answer as an app would
(`reply`, `serve`), or send objects that no app of Flower's would make (`send`).
"""

import json
import math
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256

import httpx
import torch
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.app import Context, Error, Message, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto import fleet_pb2
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeProto
from flwr.proto.recorddict_pb2 import ConfigRecord, ConfigRecordValue
from flwr.supercore.inflatable import inflatable_object as objects_of
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

from fedhca2.federation.flower import records
from fedhca2.federation.flower.answers import MAX_CHUNK_BYTES
from fedhca2.federation.flower.deploy.consent import expected_profile
from fedhca2.messages import Reply
from fedhca2.tasks import TASKS, LabelSpace

HEADLINES = {name: task.metric(LabelSpace(classes=1)).name for name, task in TASKS.items()}
PATIENCE = 30.0  # seconds that it waits for the server


def obliging(experiment, name: str):
    """An app that answers in the right form without working: a hostile site that behaves."""
    spec = next(spec for spec in experiment.specs if spec.name == name)
    profile = replace(expected_profile(experiment, spec), samples=2)

    def answer(message: Message, context: Context | None = None) -> Message:
        if "order" not in records.header_of(message.content):
            return Message(records.pack(records.profile_as_data(profile)), reply_to=message)
        order = records.decode_order(message.content, profile.layouts)
        rng = torch.Generator().manual_seed(order.round)
        sent = {slot: layout.numel for slot, layout in profile.layouts.items() if slot.part in order.upload}
        rows = {slot: 1e-3 * torch.randn(numel, generator=rng) for slot, numel in sent.items()}
        losses = dict.fromkeys(spec.tasks, 1.0) if order.train else {}
        metrics = {task: {HEADLINES[task]: 50.0} for task in spec.tasks} if order.evaluate else {}
        reply = Reply(name, order.round, rows, losses=losses, metrics=metrics, seconds=1.0)
        return Message(records.encode_reply(reply, "float32"), reply_to=message)

    return answer


def name_of(content: bytes) -> str:
    """A SuperLink's name for an object."""
    return sha256(content).hexdigest()


def made(kind: str, body: bytes, *children: bytes) -> bytes:
    """An object as it is sent."""
    names = ",".join(dict.fromkeys(map(name_of, children)))
    return f"{kind} {names} {len(body)}".encode() + b"\0" + body


def record_of(header: str) -> bytes:
    """A record with any text for its header."""
    item = ConfigRecord.Item(key="json", value=ConfigRecordValue(string=header))
    return made("ConfigRecord", ConfigRecord(items=[item]).SerializeToString())


def array_of(values: int, chunks: list[bytes], ids: list[int], **claims) -> list[bytes]:
    """An array that claims to have these values, and the chunks with these ids."""
    body = {"dtype": "float32", "shape": [values], "stype": records.STYPE, "arraychunk_ids": ids, **claims}
    pieces = [made("ArrayChunk", chunk) for chunk in chunks]
    return [*pieces, made("Array", json.dumps(body).encode(), *pieces)]


def letter_of(record: bytes, array: list[bytes] | None = None) -> list[bytes]:
    """The objects of an answer except the message itself: a header, and an array with its chunks; children first."""
    names, children = {"header": name_of(record)}, [record]
    if array:
        rows = made("ArrayRecord", json.dumps({"own": name_of(array[-1])}).encode(), array[-1])
        names["rows"] = name_of(rows)
        children.append(rows)
        array = [*array, rows]
    return [record, *(array or []), made("RecordDict", json.dumps(names).encode(), *children)]


@dataclass(frozen=True)
class Letter:
    """A good answer, to be spoiled."""

    header: dict
    rows: bytes

    @classmethod
    def of(cls, content: RecordDict) -> "Letter":
        arrays = content.array_records.get("rows", {})
        return cls(records.header_of(content), arrays["own"].data if arrays else b"")

    @property
    def values(self) -> int:
        return len(records.unsalt(self.rows)) // 4

    def sent(self, text: str | None = None, **changes) -> list[bytes]:
        """With different header values, or a different header text."""
        chunks = [self.rows[start : start + MAX_CHUNK_BYTES] for start in range(0, len(self.rows), MAX_CHUNK_BYTES)]
        array = array_of(self.values, chunks, list(range(len(chunks)))) if chunks else None
        return letter_of(record_of(json.dumps(self.header | changes) if text is None else text), array)

    def with_array(self, array: list[bytes]) -> list[bytes]:
        """With another array."""
        return letter_of(record_of(json.dumps(self.header)), array)


DEEP = "[" * 200_000 + "]" * 200_000
STEERING = "\x1b[2J\x1b]0;owned\x07 [/] [red]markup[/red] \u202e\ud800 \r\n" * 3
# What a site can send for a reply or a profile, whatever is asked of it.
ATTACKS = {
    "a header nested 200,000 deep": lambda good: good.sent('{"round": ' + DEEP + "}"),
    "a header of 50 MB": lambda good: good.sent(failed="x" * 50_000_000),
    "a header that is no JSON": lambda good: good.sent("{"),
    "a header that is no mapping": lambda good: good.sent("[]"),
    "a header without anything": lambda good: good.sent("{}"),
    "another client's name": lambda good: good.sent(client="eve"),
    "text that steers a terminal, for a name": lambda good: good.sent(client=STEERING),
    "a record that cannot be decoded": lambda good: letter_of(made("ConfigRecord", b"\xff" * 99)),
    "a content that is no JSON": lambda good: [*good.sent(), made("RecordDict", b"{", *good.sent()[:1])],
    "a content nested 20,000 deep": lambda good: [*good.sent(), made("RecordDict", b"[" * 20_000, *good.sent()[:1])],
    "a content that is a record": lambda good: good.sent()[:1],
    "5 GB in one chunk": lambda good: good.with_array(array_of(5 * 2**28, [bytes(MAX_CHUNK_BYTES)], [0] * 1024)),
    "5 GB that say they are few": lambda good: good.with_array(
        array_of(good.values, [bytes(MAX_CHUNK_BYTES)], [0] * 1024)
    ),
}
ATTACKS_IN_REPLIES = ATTACKS | {
    "seconds of 10**400": lambda good: good.sent(seconds=10**400),
    "a round of Infinity": lambda good: good.sent(round=math.inf),
    "another round": lambda good: good.sent(round=7),
    "rows that say where they are": lambda good: good.sent(slots=["encoder"] * 3),
    "losses of 10**400": lambda good: good.sent(losses={"depth": 10**400}),
    "metrics of unknown tasks": lambda good: good.sent(metrics={"[red]": {"rmse": 1.0}}),
    "metrics without the main one": lambda good: good.sent(metrics={"depth": {}}),
    "metrics by names that steer a terminal": lambda good: good.sent(metrics={"depth": {"rmse": 1.0, STEERING: 1.0}}),
    "agreement nested 900 deep": lambda good: good.sent(agreement={"encoder": json.loads("[" * 900 + "]" * 900)}),
    "a failure in 500,000 letters": lambda good: good.sent(failed=STEERING * 5000),
    "cannot, in words that steer a terminal": lambda good: good.sent(cannot=STEERING),
    "cannot, and no words": lambda good: good.sent(cannot=[{}]),
    "an array of another kind": lambda good: good.with_array(array_of(good.values, [good.rows], [0], stype="pickle")),
    "an array in crumbs": lambda good: good.with_array(array_of(good.values, [b"x"], [0] * len(good.rows))),
}
ATTACKS_IN_PROFILES = ATTACKS | {
    "samples of 10**11": lambda good: good.sent(samples=10**11),
    "samples of -1": lambda good: good.sent(samples=-1),
    "samples of true": lambda good: good.sent(samples=True),
    "another model": lambda good: good.sent(layouts={"encoder": [["w"], [[10**12]]]}),
    "layouts nested 900 deep": lambda good: good.sent(layouts=json.loads("[" * 900 + "]" * 900)),
    "other tasks": lambda good: good.sent(tasks=["depth"] * 100_000),
    "cannot, in words that steer a terminal": lambda good: good.sent(cannot=STEERING),
}


class Node:
    """A node of a SuperLink that may do anything."""

    def __init__(self, address: str, keys, *more) -> None:
        """`more` are further interceptors: with the operator's, it reaches the SuperLink without the proxy."""
        key = load_ssh_private_key((keys / "node.key").read_bytes(), None)
        self.key = public_key_to_bytes(key.public_key())
        own = [
            RuntimeVersionHttpInterceptor(component_name="SuperNode"),
            NodeAuthHttpInterceptor(key, key.public_key()),
        ]
        ca = (keys / "ca.crt").read_bytes()
        self.client = FleetHttpClient.from_server_address(address, False, ca, interceptors=[*own, *more])
        self.number = 0

    def __enter__(self):
        self.activate()
        return self

    def __exit__(self, *_):
        with suppress(httpx.HTTPStatusError):  # who was silent for a minute is not there any more
            self.deactivate()
        self.client.close()

    def activate(self) -> None:
        """Go online."""
        request = fleet_pb2.ActivateNodeRequest(public_key=self.key, heartbeat_interval=30)
        self.number = self.client.ActivateNode(request).node_id
        self.node = NodeProto(node_id=self.number)
        self.stay()

    def stay(self) -> None:
        """Stay online for another minute."""
        self.client.SendNodeHeartbeat(SendNodeHeartbeatRequest(node=self.node, heartbeat_interval=30))
        self.stayed = time.monotonic()

    def deactivate(self) -> None:
        """Go offline."""
        self.client.DeactivateNode(fleet_pb2.DeactivateNodeRequest(node_id=self.number))

    def receive(self, seconds: float = PATIENCE) -> Message | None:
        """The next message from the server, if one comes in time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if time.monotonic() > self.stayed + 20:
                self.stay()
            found = self.client.PullMessages(fleet_pb2.PullMessagesRequest(node=self.node))
            for message, tree in zip(found.messages_list, found.message_object_trees, strict=True):
                with suppress(httpx.HTTPStatusError):  # of a run that is over
                    return self._pull(message, tree)
            time.sleep(min(0.2, seconds))
        return None

    def _pull(self, message, tree) -> Message:
        run, contents = message.metadata.run_id, {}
        for one in objects_of.iterate_object_tree(tree):
            request = PullObjectRequest(node=self.node, run_id=run, object_id=one.object_id)
            while not (found := self.client.PullObject(request)).object_available:
                time.sleep(0.05)
            contents[one.object_id] = found.object_content
        arrived = inflate_object_from_contents(tree.object_id, contents)
        arrived.metadata.__dict__["_message_id"] = tree.object_id
        return arrived

    def reply(self, to: Message, content: RecordDict) -> None:
        """Answer like an app."""
        objects = objects_of.get_all_nested_objects(Message(content, reply_to=to))
        self.send(to, [found.deflate() for found in objects.values()][:-1])

    def send(self, to: Message, objects: list[bytes], pause: float = 0.0, first: int = 0) -> None:
        """Answer with any objects, children first and the content last, pausing after the first ones."""
        proto = message_to_proto(Message(RecordDict(), reply_to=to))
        message = made("Message", type(proto)(metadata=proto.metadata).SerializeToString(), objects[-1])
        proto.metadata.message_id = name_of(message)
        self._push(proto, {name_of(content): content for content in [*objects, message]}, pause, first)

    def _push(self, proto, contents: dict[str, bytes], pause: float, first: int) -> None:
        tree = _tree(proto.metadata.message_id, contents)
        request = fleet_pb2.PushMessagesRequest(node=self.node, messages_list=[proto], message_object_trees=[tree])
        pushed = self.client.PushMessages(request)
        session = {"node": self.node, "run_id": proto.metadata.run_id, "session_id": pushed.session_id}
        expected = set(pushed.objects_to_push)
        for number, (name, content) in enumerate(reversed(contents.items())):  # the message first: all is announced
            if name in expected:
                time.sleep(pause if number >= first else 0)
                self.client.PushObject(PushObjectRequest(object_id=name, object_content=content, **session))

    def fail(self, to: Message, error: Error) -> None:
        """Answer with an error, as Flower does for an app."""
        failure = Message(error, reply_to=to)
        content = failure.deflate()
        failure.metadata.__dict__["_message_id"] = name_of(content)
        self._push(message_to_proto(failure), {name_of(content): content}, 0.0, 0)

    def serve(self, app, stop: threading.Event) -> None:
        """Answer every message like an app, and stay online meanwhile, until stopped or the federation is over."""

        def work():
            with suppress(httpx.HTTPError, RuntimeError):  # also if its client was closed
                while not stop.is_set():
                    if message := self.receive(0.2):
                        context = Context(message.metadata.run_id, self.number, {}, RecordDict(), {})
                        self.reply(message, app(message, context).content)

        def beat():
            with suppress(httpx.HTTPError):
                while not stop.wait(10):
                    self.stay()

        for task in (work, beat):
            threading.Thread(target=task, daemon=True).start()


@contextmanager
def working(node: Node, app):
    """Let a node answer every message like an app until the end, or until the event is set that this yields."""
    stop = threading.Event()
    node.activate()
    node.serve(app, stop)
    yield stop
    stop.set()
    node.client.close()


def _tree(name: str, contents: dict[str, bytes]) -> ObjectTree:
    children = objects_of.get_object_children_ids_from_object_content(contents[name]) if name in contents else []
    return ObjectTree(object_id=name, children=[_tree(child, contents) for child in children])
