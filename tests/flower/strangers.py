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
from cryptography.hazmat.primitives.serialization import load_ssh_private_key
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    RegisterNodeRequest,
    StartRunRequest,
    StopRunRequest,
    UnregisterNodeRequest,
)
from flwr.proto.fab_pb2 import Fab
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import Message, Metadata, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.proto.recorddict_pb2 import RecordDict
from flwr.proto.runtime_pb2 import AcquireTaskRequest, PullAppMessagesRequest
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, sign_message

FLEET, CONTROL, RUNTIME = "/v1/fleet", "/v1/control", "/v1/runtime"


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
        self.http = httpx.Client(verify=ssl.create_default_context(cafile=str(self.ca)), timeout=20)

    def signed(self, key: Path | None = None) -> dict[str, str]:
        """The headers that Flower would send with a request."""
        if not (key or self.key):
            return {}
        private = load_ssh_private_key((key or self.key).read_bytes(), None)
        time = datetime.now(UTC).isoformat()
        return {
            "flwr-public-key": b64encode(public_key_to_bytes(private.public_key())).decode(),
            "flwr-timestamp": time,
            "flwr-signature": b64encode(sign_message(private, time.encode())).decode(),
        }

    def post(self, path: str, request=None, method: str = "POST", **headers: str) -> httpx.Response:
        """Ask for something."""
        kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        found = {**kind, **self.signed(), **(self.headers or {}), **headers}
        body = request if isinstance(request, bytes) else request.SerializeToString() if request is not None else b""
        return self.http.request(method, f"https://{self.address}{path}", content=body, headers=found)

    def raw(self, data: bytes) -> bytes:
        """Send bytes over TLS, and read what comes back."""
        host, port = self.address.rsplit(":", 1)
        context = ssl.create_default_context(cafile=str(self.ca))
        with (
            socket.create_connection((host, int(port)), 20) as plain,
            context.wrap_socket(plain, server_hostname=host) as link,
        ):
            link.sendall(data)
            return link.recv(4096)

    def push(self, tree: ObjectTree | None = None, **metadata) -> PushMessagesRequest:
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
        return PushMessagesRequest(
            node=Node(node_id=self.node),
            messages_list=[Message(metadata=Metadata(**about), content=RecordDict())],
            message_object_trees=[tree],
        )


def name(of: object) -> str:
    """A possible name of an object."""
    return sha256(str(of).encode()).hexdigest()


def chain(depth: int) -> ObjectTree:
    """A chain of objects, each below the last."""
    tree = ObjectTree(object_id=name(("chain", depth)))
    for level in range(1, depth):
        tree = ObjectTree(object_id=name(("chain", depth, level)), children=[tree])
    return tree


def bomb(width: int, depth: int) -> ObjectTree:
    """A few objects that are each other's children many times over: small to send, endless to traverse."""
    tree = ObjectTree(object_id=name("leaf"))
    for level in range(depth):
        tree = ObjectTree(object_id=name(("bomb", level)), children=[tree] * width)
    return tree


def wide(count: int) -> ObjectTree:
    """Many objects below one."""
    return ObjectTree(object_id=name("wide"), children=[ObjectTree(object_id=name(n)) for n in range(count)])


def overspent(visitor: Visitor) -> httpx.Response:
    """Objects of 5 MB up to the quota; none belongs to a reply, and each is accepted and counted."""
    request = PushObjectRequest(
        node=Node(node_id=visitor.node), run_id=visitor.run, object_id=name("object"), session_id="s"
    )
    request.object_content = bytes(5_000_000)
    for _ in range(20):
        answer = visitor.post(f"{FLEET}/push-object", request)
        if answer.status_code != 200:
            break
    return answer


def repeated(visitor: Visitor) -> httpx.Response:
    """The same reply announced repeatedly."""
    for _ in range(12):
        answer = visitor.post(f"{FLEET}/push-messages", visitor.push())
        if answer.status_code == 413:
            break
    return answer


def posing(visitor: Visitor) -> PushMessagesRequest:
    """An order to another site, in the server's name."""
    return visitor.push(src_node_id=SUPERLINK_NODE_ID, dst_node_id=visitor.victim, reply_to_message_id="")


def control(path: str, request):
    return lambda visitor: visitor.post(f"{CONTROL}/{path}", request(visitor))


# What anybody may try who has `ca.crt`, and each site besides: the operator's interfaces, and ways around the proxy.
ANYBODY = {
    "list the nodes": control("list-nodes", lambda _: ListNodesRequest()),
    "evict a site": control("unregister-node", lambda visitor: UnregisterNodeRequest(node_id=visitor.victim)),
    "register a key under a site's name": control(
        "register-node", lambda visitor: RegisterNodeRequest(public_key=b"key", name="outdoor-semseg")
    ),
    "stop the run": control("stop-run", lambda visitor: StopRunRequest(run_id=visitor.run)),
    "start a run": control("start-run", lambda _: StartRunRequest(fab=Fab(hash_str="x", content=b"x"))),
    "take the server's task": lambda visitor: visitor.post(
        f"{RUNTIME}/acquire-task", AcquireTaskRequest(supported_task_types=["serverapp"])
    ),
    "pull the server's messages": lambda visitor: visitor.post(
        f"{RUNTIME}/pull-messages", PullAppMessagesRequest(message_ids=[name("order")])
    ),
    "register through the fleet": lambda visitor: visitor.post(
        f"{FLEET}/register-node", RegisterNodeFleetRequest(public_key=b"key")
    ),
    "a path with dots": lambda visitor: visitor.raw(
        b"POST /v1/fleet/../control/list-nodes HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    ),
    "a path with dots in disguise": lambda visitor: visitor.post(f"{FLEET}/%2e%2e/control/list-nodes"),
    "a path with two slashes": lambda visitor: visitor.post("//v1/control/list-nodes"),
    "an absolute target": lambda visitor: visitor.raw(
        b"POST https://127.0.0.1/v1/control/list-nodes HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    ),
    "a path that is none": lambda visitor: visitor.post("/docs", method="GET"),
    "another method": lambda visitor: visitor.post(f"{FLEET}/pull-messages", method="GET"),
    "a request in a request": lambda visitor: visitor.raw(
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n"
        b"0\r\n\r\nPOST /v1/control/list-nodes HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    ),
    "a head without an end": lambda visitor: visitor.raw(
        b"POST /v1/fleet/pull-messages HTTP/1.1\r\nx: " + b"x" * 100_000
    ),
    "another's key without its signature": lambda visitor: visitor.post(
        f"{FLEET}/pull-messages",
        PullMessagesRequest(node=Node(node_id=visitor.victim)),
        **{"flwr-public-key": public_header(visitor.victim_key)},
    ),
}


def public_header(path: Path) -> str:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    return b64encode(public_key_to_bytes(load_ssh_public_key(path.read_bytes()))).decode()


def fleet(path: str, request):
    return lambda visitor: visitor.post(f"{FLEET}/{path}", request(visitor))


# What only a site with a key can try.
SITES = {
    "pose as the server to another site": fleet("push-messages", posing),
    "send a message that answers nothing": fleet("push-messages", lambda site: site.push(reply_to_message_id="")),
    "answer for another site": fleet("push-messages", lambda site: site.push(src_node_id=site.victim)),
    "answer another site": fleet("push-messages", lambda site: site.push(dst_node_id=site.victim)),
    "say that it is another node": lambda site: site.post(
        f"{FLEET}/push-messages", PushMessagesRequest(node=Node(node_id=site.victim))
    ),
    "activate another's key": fleet("activate-node", lambda site: ActivateNodeRequest(public_key=b"k")),
    "deactivate another site": fleet("deactivate-node", lambda site: DeactivateNodeRequest(node_id=site.victim)),
    "take another site's messages": fleet(
        "pull-messages", lambda site: PullMessagesRequest(node=Node(node_id=site.victim))
    ),
    "send another site's heartbeat": fleet(
        "send-node-heartbeat",
        lambda site: SendNodeHeartbeatRequest(node=Node(node_id=site.victim), heartbeat_interval=30),
    ),
    "two messages at once": fleet(
        "push-messages", lambda site: PushMessagesRequest(node=site.push().node, messages_list=[Message()] * 2)
    ),
    "a tree six deep": fleet("push-messages", lambda site: site.push(chain(6))),
    "a tree sixty deep": fleet("push-messages", lambda site: site.push(chain(60))),
    "a tree that is its own child": fleet("push-messages", lambda site: site.push(bomb(3, 4))),
    "a tree of 5,000 objects": fleet("push-messages", lambda site: site.push(wide(5000))),
    "a tree of names that are none": fleet("push-messages", lambda site: site.push(ObjectTree(object_id="x"))),
    "a tree that is not the message's": fleet("push-messages", lambda site: site.push(message_id=name("other"))),
    "content inside a message": lambda site: site.post(f"{FLEET}/push-messages", with_content(site.push())),
    "an announcement of 1 MB": lambda site: site.post(f"{FLEET}/push-messages", bytes(2**20)),
    "an object of 6 MB": lambda site: site.post(f"{FLEET}/push-object", bytes(6_000_000)),
    "an object of no reply": fleet(
        "push-object", lambda site: PushObjectRequest(node=Node(node_id=site.node), run_id=site.run, object_id=name(1))
    ),
    "a request of no length": lambda site: site.http.post(
        f"https://{site.address}{FLEET}/pull-messages", content=iter([b"x"]), headers=site.signed()
    ),
    "a signature of an hour ago": lambda site: site.post(
        f"{FLEET}/pull-messages", PullMessagesRequest(node=Node(node_id=site.node)), **{"flwr-timestamp": "2020-01-01"}
    ),
    "a header that is not ASCII": lambda site: site.post(f"{FLEET}/pull-messages", **{"flwr-note": "é".encode()}),
    "something else than protobuf": lambda site: site.post(f"{FLEET}/push-messages", b"\xff" * 99),
    "the same answer many times": repeated,
    "more bytes than it may leave": overspent,
}


def with_content(request: PushMessagesRequest) -> PushMessagesRequest:
    item = request.messages_list[0].content.items.add(key="k" * 100_000)
    item.config_record.SetInParent()
    return request


def is_refused(answer: httpx.Response | bytes) -> bool:
    """Whether an answer is a refusal, and not a server error."""
    if isinstance(answer, bytes):
        return answer[9:10] == b"4"
    return 400 <= answer.status_code < 500


def outcome_of(answer: httpx.Response | bytes) -> str:
    """The proxy's answer in one line."""
    if isinstance(answer, bytes):
        return answer.split(b"\r\n")[0].decode("latin-1")
    return f"{answer.status_code}: {' '.join(answer.text.split())[:80]}"
