"""Visitors of the public address: a stranger with only `ca.crt`, or a site with its key, and what each may try.

An attack is a function of a `Visitor` that returns the answer which it got. Every one of them should be refused.
"""

import socket
import ssl
from base64 import b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import httpx
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto import control_pb2, fab_pb2, fleet_pb2, heartbeat_pb2, recorddict_pb2, runtime_pb2
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

FLEET, CONTROL, RUNTIME = "/v1/fleet", "/v1/control", "/v1/runtime"
PUSH, PULL, OBJECT = f"{FLEET}/push-messages", f"{FLEET}/pull-messages", f"{FLEET}/push-object"


@dataclass
class Visitor:
    """A visitor of an address, with or without a key."""

    address: str
    ca: Path
    node: int = 0  # its own, if it has one
    victim: int = 0  # another site's
    victim_key: Path | None = None  # the public one
    run: int = 0
    key: Path | None = None
    headers: dict[str, str] | None = None  # more of them

    def __post_init__(self) -> None:
        self.tls = ssl.create_default_context(cafile=str(self.ca))
        self.http = httpx.Client(verify=self.tls, timeout=20)

    def signed(self) -> dict[str, str]:
        """The headers that Flower would send with a request."""
        if not self.key:
            return {}
        private = load_ssh_private_key(self.key.read_bytes(), None)
        time = datetime.now(UTC).isoformat()
        return {
            "flwr-public-key": b64encode(public_key_to_bytes(private.public_key())).decode(),
            "flwr-timestamp": time,
            "flwr-signature": b64encode(sign_message(private, time.encode())).decode(),
        }

    def post(self, path: str, request=b"", method: str = "POST", **headers: str) -> httpx.Response:
        """Ask for something."""
        kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        found = {**kind, **self.signed(), **(self.headers or {}), **headers}
        body = request if isinstance(request, bytes) else request.SerializeToString()
        return self.http.request(method, f"https://{self.address}{path}", content=body, headers=found)

    def raw(self, data: bytes) -> bytes:
        """Send bytes over TLS, and read what comes back."""
        host, port = self.address.rsplit(":", 1)
        plain = socket.create_connection((host, int(port)), 20)
        with self.tls.wrap_socket(plain, server_hostname=host) as link:
            link.sendall(data)
            return link.recv(4096)

    def push(self, tree: ObjectTree | None = None, **metadata) -> fleet_pb2.PushMessagesRequest:
        """A well-formed message, except for its metadata."""
        tree = tree or ObjectTree(object_id=name("message"), children=[ObjectTree(object_id=name("content"))])
        about = {
            "run_id": self.run,
            "message_id": tree.object_id,
            "src_node_id": self.node,
            "dst_node_id": SUPERLINK_NODE_ID,
            "reply_to_message_id": name("order"),
            "group_id": "g",
            "ttl": 600.0,
            "message_type": "train",
            "created_at": datetime.now(UTC).timestamp(),
            **metadata,
        }
        message = Message(metadata=Metadata(**about), content=recorddict_pb2.RecordDict())
        return fleet_pb2.PushMessagesRequest(node=own(self), messages_list=[message], message_object_trees=[tree])


def own(visitor: Visitor) -> Node:
    return Node(node_id=visitor.node)


def victim(visitor: Visitor) -> Node:
    return Node(node_id=visitor.victim)


def name(of: object) -> str:
    """A possible name of an object."""
    return sha256(str(of).encode()).hexdigest()


def bomb(width: int, depth: int) -> ObjectTree:
    """Few objects that are each other's children many times over: small to send, endless to traverse; 1 wide, a chain.

    The objects of a chain have different names.
    """
    tree = ObjectTree(object_id=name("leaf"))
    for level in range(1, depth):
        tree = ObjectTree(object_id=name(("bomb", level)), children=[tree] * width)
    return tree


def wide(count: int) -> ObjectTree:
    """Many objects below one."""
    return ObjectTree(object_id=name("wide"), children=[ObjectTree(object_id=name(n)) for n in range(count)])


def overspent(visitor: Visitor) -> httpx.Response:
    """Objects of 5 MB up to the quota; none belongs to a reply, and each is accepted and counted."""
    request = PushObjectRequest(node=own(visitor), run_id=visitor.run, object_id=name("object"), session_id="s")
    request.object_content = bytes(5_000_000)
    answers = (visitor.post(OBJECT, request) for _ in range(20))
    return next(answer for answer in answers if answer.status_code != 200)


def repeated(visitor: Visitor) -> httpx.Response:
    """The same reply announced repeatedly."""
    return [visitor.post(PUSH, visitor.push()) for _ in range(12)][-1]


def posing(visitor: Visitor) -> fleet_pb2.PushMessagesRequest:
    """An order to another site, in the server's name."""
    return visitor.push(src_node_id=SUPERLINK_NODE_ID, dst_node_id=visitor.victim, reply_to_message_id="")


def ask(path: str, request=lambda _: b"", **options):
    """An attack by a request, which may depend on the visitor."""
    return lambda visitor: visitor.post(path, request(visitor), **options)


def raw(target: str, head: str = "host: x\r\ncontent-length: 0\r\n\r\n"):
    """An attack in bytes that no client would send."""
    return lambda visitor: visitor.raw(f"POST {target} HTTP/1.1\r\n{head}".encode())


def public_header(path: Path) -> str:
    return b64encode(public_key_to_bytes(load_ssh_public_key(path.read_bytes()))).decode()


TWO_LENGTHS = "host: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
INNER = "POST /v1/control/list-nodes HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
# What anybody may try who has `ca.crt`, and each site besides: the operator's interfaces, and ways around the proxy.
ANYBODY = {
    "list the nodes": ask(f"{CONTROL}/list-nodes", lambda _: control_pb2.ListNodesRequest()),
    "evict a site": ask(
        f"{CONTROL}/unregister-node", lambda one: control_pb2.UnregisterNodeRequest(node_id=one.victim)
    ),
    "register a key under a site's name": ask(
        f"{CONTROL}/register-node", lambda _: control_pb2.RegisterNodeRequest(public_key=b"key", name="outdoor-semseg")
    ),
    "stop the run": ask(f"{CONTROL}/stop-run", lambda one: control_pb2.StopRunRequest(run_id=one.run)),
    "start a run": ask(
        f"{CONTROL}/start-run", lambda _: control_pb2.StartRunRequest(fab=fab_pb2.Fab(hash_str="x", content=b"x"))
    ),
    "take the server's task": ask(
        f"{RUNTIME}/acquire-task", lambda _: runtime_pb2.AcquireTaskRequest(supported_task_types=["serverapp"])
    ),
    "pull the server's messages": ask(
        f"{RUNTIME}/pull-messages", lambda _: runtime_pb2.PullAppMessagesRequest(message_ids=[name("order")])
    ),
    "register through the fleet": ask(
        f"{FLEET}/register-node", lambda _: fleet_pb2.RegisterNodeFleetRequest(public_key=b"key")
    ),
    "a path with dots": raw("/v1/fleet/../control/list-nodes"),
    "a path with dots in disguise": ask(f"{FLEET}/%2e%2e/control/list-nodes"),
    "a path with two slashes": ask("//v1/control/list-nodes"),
    "an absolute target": raw("https://127.0.0.1/v1/control/list-nodes"),
    "a path that is none": ask("/docs", method="GET"),
    "another method": ask(PULL, method="GET"),
    "a request in a request": raw(PULL, TWO_LENGTHS + INNER),
    "a head without an end": raw(PULL, "x: " + "x" * 100_000),
    "another's key without its signature": lambda one: one.post(
        PULL, fleet_pb2.PullMessagesRequest(node=victim(one)), **{"flwr-public-key": public_header(one.victim_key)}
    ),
}
# What only a site with a key can try.
SITES = {
    "pose as the server to another site": ask(PUSH, posing),
    "send a message that answers nothing": ask(PUSH, lambda site: site.push(reply_to_message_id="")),
    "answer for another site": ask(PUSH, lambda site: site.push(src_node_id=site.victim)),
    "answer another site": ask(PUSH, lambda site: site.push(dst_node_id=site.victim)),
    "say that it is another node": ask(PUSH, lambda site: fleet_pb2.PushMessagesRequest(node=victim(site))),
    "activate another's key": ask(f"{FLEET}/activate-node", lambda _: fleet_pb2.ActivateNodeRequest(public_key=b"k")),
    "deactivate another site": ask(
        f"{FLEET}/deactivate-node", lambda site: fleet_pb2.DeactivateNodeRequest(node_id=site.victim)
    ),
    "take another site's messages": ask(PULL, lambda site: fleet_pb2.PullMessagesRequest(node=victim(site))),
    "send another site's heartbeat": ask(
        f"{FLEET}/send-node-heartbeat",
        lambda site: heartbeat_pb2.SendNodeHeartbeatRequest(node=victim(site), heartbeat_interval=30),
    ),
    "two messages at once": ask(
        PUSH, lambda site: fleet_pb2.PushMessagesRequest(node=own(site), messages_list=[Message()] * 2)
    ),
    "a tree six deep": ask(PUSH, lambda site: site.push(bomb(1, 6))),
    "a tree sixty deep": ask(PUSH, lambda site: site.push(bomb(1, 60))),
    "a tree that is its own child": ask(PUSH, lambda site: site.push(bomb(3, 5))),
    "a tree of 5,000 objects": ask(PUSH, lambda site: site.push(wide(5000))),
    "a tree of names that are none": ask(PUSH, lambda site: site.push(ObjectTree(object_id="x"))),
    "a tree that is not the message's": ask(PUSH, lambda site: site.push(message_id=name("other"))),
    "content inside a message": ask(PUSH, lambda site: with_content(site.push())),
    "an announcement of 1 MB": ask(PUSH, lambda _: bytes(2**20)),
    "an object of 6 MB": ask(OBJECT, lambda _: bytes(6_000_000)),
    "an object of no reply": ask(
        OBJECT, lambda site: PushObjectRequest(node=own(site), run_id=site.run, object_id=name(1))
    ),
    "a request of no length": lambda site: site.http.post(
        f"https://{site.address}{PULL}", content=iter([b"x"]), headers=site.signed()
    ),
    "a signature of an hour ago": ask(
        PULL, lambda site: fleet_pb2.PullMessagesRequest(node=own(site)), **{"flwr-timestamp": "2020-01-01"}
    ),
    "a header that is not ASCII": ask(PULL, **{"flwr-note": "é".encode()}),
    "something else than protobuf": ask(PUSH, lambda _: b"\xff" * 99),
    "the same answer many times": repeated,
    "more bytes than it may leave": overspent,
}


def with_content(request: fleet_pb2.PushMessagesRequest) -> fleet_pb2.PushMessagesRequest:
    item = request.messages_list[0].content.items.add(key="k" * 100_000)
    item.config_record.SetInParent()
    return request


def is_refused(answer: httpx.Response | bytes) -> bool:
    """Whether an answer is a refusal, and not a server error."""
    return outcome_of(answer).startswith("4")


def outcome_of(answer: httpx.Response | bytes) -> str:
    """The proxy's answer in one line."""
    if isinstance(answer, bytes):
        return answer.split(b"\r\n")[0].decode("latin-1").removeprefix("HTTP/1.1 ")
    return f"{answer.status_code}: {' '.join(answer.text.split())[:80]}"
