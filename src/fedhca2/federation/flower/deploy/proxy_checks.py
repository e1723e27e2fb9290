"""What the proxy checks of a site's requests: who sends them, and what and how much they may ask of the SuperLink."""

import logging
import re
from base64 import b64decode
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from flwr.common import constant
from flwr.proto import fab_pb2, fleet_pb2, heartbeat_pb2, message_pb2, run_pb2
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.node_pb2 import NodeInfo
from google.protobuf.message import Message
from starlette.requests import Request

from fedhca2.federation.flower import internals

Headers = Mapping[str, str]
MAX_DEPTH = 5  # of a tree of objects: message, content, record, array, chunk
MAX_OBJECTS = 2**12  # in one reply: 20 GiB in chunks
MAX_INLINE_BYTES = 2**10  # of content inside a message, which should be empty: Flower sends content as objects


@dataclass(frozen=True)
class ProxyLimits:
    """Bounds on connections and requests."""

    strangers: int = 1024  # connections that have not shown a key
    strangers_from_one_address: int = 256
    connections_of_a_site: int = 32  # that have shown its key: Flower's SuperNode uses seven
    requests_of_a_site: int = 16  # at the same time; Flower's SuperNode uses six
    handshake_s: float = 10.0
    head_s: float = 30.0  # for the header of a request, from the connection or the last response on
    body_s: float = 120.0  # for a request to arrive: a chunk at 0.4 Mbit/s
    answer_s: float = 300.0  # until a request has its answer
    head_bytes: int = 2**14


class Refusal(Exception):  # noqa: N818 - it is an answer
    """The answer to a request that is not forwarded: an HTTP status, and the reason."""


@dataclass(frozen=True)
class Route:
    """A path that is open to sites."""

    request: type[Message]
    limit: int = 2**12  # bytes; by default, of a request that only names things


# The fleet interface, except registering and unregistering: the operator manages keys.
ROUTES = {
    "/v1/fleet/activate-node": Route(fleet_pb2.ActivateNodeRequest),
    "/v1/fleet/deactivate-node": Route(fleet_pb2.DeactivateNodeRequest),
    "/v1/fleet/send-node-heartbeat": Route(heartbeat_pb2.SendNodeHeartbeatRequest),
    "/v1/fleet/pull-messages": Route(fleet_pb2.PullMessagesRequest),
    # A reply without its objects: 70 bytes for each of them, or an error text.
    "/v1/fleet/push-messages": Route(fleet_pb2.PushMessagesRequest, 2**19),
    "/v1/fleet/get-run": Route(run_pb2.GetRunRequest),
    "/v1/fleet/get-fab": Route(fab_pb2.GetFabRequest),
    # An object is a chunk of an array, or smaller.
    "/v1/fleet/push-object": Route(message_pb2.PushObjectRequest, constant.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 2**16),
    "/v1/fleet/pull-object": Route(message_pb2.PullObjectRequest),
    "/v1/fleet/confirm-message-received": Route(message_pb2.ConfirmMessageReceivedRequest),
}


def read_head(request: Request) -> tuple[Route, Headers, bytes]:
    """The route, the headers, and the key that a request claims to be signed with; its body is not read yet."""
    route = ROUTES.get(request.url.path)
    if route is None:
        raise Refusal(404, "path: expected one that is open to sites, got another")
    if request.method != "POST":
        raise Refusal(403, "method: expected POST, got another")
    headers = dict(request.headers.items())
    if len(headers) != len(request.headers.items()):  # different readers could see different values
        raise Refusal(400, "a header: expected it once, got it twice")
    if not all(value.isascii() for value in headers.values()):
        raise Refusal(400, "a header: expected ASCII, got other characters")
    try:
        return route, headers, b64decode(headers[internals.FLEET_HTTP_PUBLIC_KEY_HEADER], validate=True)
    except (KeyError, ValueError):
        raise Refusal(401, "a request: expected a key that signs it, got none") from None


def forwarded(headers: Headers) -> Headers:
    """The headers that are passed on, in either direction."""
    names = ("content-type", "content-length", "accept")
    return {name: value for name, value in headers.items() if name in names or name.startswith("flwr-")}


def is_signed(headers: Headers, key: bytes) -> bool:
    """Whether the holder of this key recently made the request. Flower signs the time; TLS prevents its replay."""
    try:
        time = headers.get(constant.TIMESTAMP_HEADER, "")
        age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
        signature = b64decode(headers.get(internals.FLEET_HTTP_SIGNATURE_HEADER, ""), validate=True)
        recent = -constant.SYSTEM_TIME_TOLERANCE < age < constant.TIMESTAMP_TOLERANCE + constant.SYSTEM_TIME_TOLERANCE
        return recent and internals.verify_signature(internals.bytes_to_public_key(key), time.encode(), signature)
    except (ValueError, TypeError):
        return False


def check_request(request: Message, site: NodeInfo) -> None:
    """Raise Refusal unless this site may make this request."""
    if isinstance(request, fleet_pb2.ActivateNodeRequest):
        if request.public_key != site.public_key:
            raise Refusal(403, "public key: expected the one that signed, got another")
        return
    claimed = request.node_id if isinstance(request, fleet_pb2.DeactivateNodeRequest) else request.node.node_id
    if claimed != site.node_id:
        # A SuperNode that still has its number from an earlier SuperLink ends on 401, and its site starts it anew.
        raise Refusal(401 if claimed else 403, f"node: expected {site.node_id}, got {claimed}")
    if isinstance(request, fleet_pb2.PushMessagesRequest):
        _check_reply(request, site.node_id)
    if isinstance(request, message_pb2.PushObjectRequest) and not request.session_id:
        raise Refusal(403, "an object: expected one of a reply, got no session")


def _check_reply(request: fleet_pb2.PushMessagesRequest, node: int) -> None:
    """Check a reply before its objects come. Anything but a reply would be treated as an order."""
    counts = len(request.messages_list), len(request.message_object_trees)
    if counts != (1, 1):
        raise Refusal(403, f"a request: expected one message and one tree, got {counts[0]} and {counts[1]}")
    message, tree = request.messages_list[0], request.message_object_trees[0]
    about = message.metadata
    if about.src_node_id != node:
        raise Refusal(403, f"sender: expected {node}, got {about.src_node_id}")
    if not _is_hash(about.reply_to_message_id):
        raise Refusal(403, "a message of a site: expected a reply, got one to no message")
    if about.dst_node_id != constant.SUPERLINK_NODE_ID:
        raise Refusal(403, f"receiver: expected the server, got {about.dst_node_id}")
    if about.message_id != tree.object_id:
        raise Refusal(403, "a tree: expected its message's, got another's")
    if (size := message.content.ByteSize()) > MAX_INLINE_BYTES:
        raise Refusal(403, f"content: expected it as objects, got {size} B in the message")
    check_tree(tree)


def check_tree(tree: ObjectTree) -> None:
    """Raise Refusal if a tree of objects is deeper or larger than a reply's, or names an object twice."""
    seen: set[str] = set()
    level, count = [tree], 1
    for _ in range(MAX_DEPTH):
        for one in level:
            if not _is_hash(one.object_id):
                raise Refusal(403, "an object: expected its hash as its name, got another name")
            if one.object_id in seen:
                raise Refusal(403, "an object: expected it once in a tree, got it twice")
            seen.add(one.object_id)
        count += sum(len(one.children) for one in level)
        if count > MAX_OBJECTS:
            raise Refusal(403, f"a tree: expected at most {MAX_OBJECTS} objects, got more")
        level = [child for one in level for child in one.children]
    if level:
        raise Refusal(403, f"a tree: expected at most {MAX_DEPTH} levels, got one that is deeper")


def _is_hash(name: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{64}", name) is not None


@dataclass
class Quota:
    """What a node may still send. The server sends it a message once it is done with the last answer."""

    max_bytes: int
    max_pushes: int = 8  # announcements per reply: the SuperLink accepts one, and a bad network repeats it
    bytes: int = 0
    pushes: int = 0

    def take(self, size: int, announces: bool) -> None:
        """Count a request; raises Refusal if it is too much."""
        if announces and self.pushes >= self.max_pushes:
            raise Refusal(413, f"a message: expected one answer, got {self.pushes} before this one")
        if self.bytes + size > self.max_bytes:
            raise Refusal(413, f"an answer: expected at most {self.max_bytes} B (--quota), got {self.bytes + size}")
        self.bytes += size
        self.pushes += announces

    def give_back(self, size: int, announces: bool) -> None:
        """Undo the count of a request that was not accepted."""
        self.bytes -= size
        self.pushes -= announces

    def renew(self) -> None:
        """The server has sent a new message."""
        self.bytes = self.pushes = 0


class KnownObjects:
    """The objects that a SuperLink may hold, by the trees in which they were announced.

    A SuperLink names objects by their content and keeps an object's children from its first announcement. A tree with
    an object that is already there would change another tree, or leave objects without a parent, which nobody releases.
    So the tree of an answer must consist of new objects. Those of honest sites do, since every message has its salt.
    """

    def __init__(self, max_trees: int = 8) -> None:
        """:param max_trees: of a node's messages, and of its answers: the server soon releases each."""
        self._max_trees = max_trees
        # The latest by node, and whether they are answers.
        self._trees = defaultdict[tuple[int, bool], dict[str, ObjectTree]](dict)
        self._holders = Counter[str]()  # the number of trees that an object is in

    def claim(self, node: int, tree: ObjectTree) -> bool:
        """Remember the tree of a node's answer; False if it already is.

        Raises Refusal if one of its objects is in another tree.
        """
        if self._trees[node, True].get(tree.object_id) == tree:
            return False
        if any(self._holders[name] for name in names_in(tree)):
            raise Refusal(403, "an answer: expected new objects, got one that was sent before")
        self.note(node, tree, is_answer=True)
        return True

    def release(self, node: int, tree: ObjectTree) -> None:
        """Forget the tree of an answer that the SuperLink has not accepted."""
        if self._trees[node, True].pop(tree.object_id, None):
            self._remove(tree)

    def note(self, node: int, tree: ObjectTree, *, is_answer: bool) -> None:
        """Remember a tree that a node has received, or that of its answer."""
        trees = self._trees[node, is_answer]
        if tree.object_id not in trees:
            trees[tree.object_id] = tree
            self._holders.update(names_in(tree))
            if len(trees) > self._max_trees:
                self._remove(trees.pop(next(iter(trees))))

    def _remove(self, tree: ObjectTree) -> None:
        for name in names_in(tree):
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]


def names_in(tree: ObjectTree) -> list[str]:
    """The names of all objects of a tree."""
    return [one.object_id for one in internals.iterate_object_tree(tree)]


class RateLimitFilter(logging.Filter):
    """Lets one record of a kind pass in ten seconds, with a count of the others, so that no one can fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}  # when it is logged again, and how many were not

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record. Its kind is its own, or its text without arguments."""
        kind = re.sub(r"\d+", "#", getattr(record, "kind", str(record.msg)))
        again, count = self._seen.get(kind, (0.0, 0))
        if monotonic() < again:
            self._seen[kind] = again, count + 1
            return False
        if count:
            record.msg, record.args = f"{record.getMessage()} ({count} more times before)", ()
        if len(self._seen) >= 1024:
            self._seen.clear()
        self._seen[kind] = monotonic() + 10, 0
        return True
