"""A site's requests: who asks, what it may ask of the SuperLink, how much of it, and what is wrong with a request."""

import asyncio
import re
from base64 import b64decode
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from time import monotonic

from flwr.common.constant import (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE,
    SUPERLINK_NODE_ID,
    SYSTEM_TIME_TOLERANCE,
    TIMESTAMP_HEADER,
    TIMESTAMP_TOLERANCE,
)
from flwr.proto.fab_pb2 import GetFabRequest
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
)
from flwr.proto.heartbeat_pb2 import SendNodeHeartbeatRequest
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.run_pb2 import GetRunRequest
from google.protobuf.message import Message

from fedhca2.federation.flower.control import Registration
from fedhca2.federation.flower.internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    bytes_to_public_key,
    verify_signature,
)

LOOK_EVERY = 1.0  # seconds between two looks at who is registered, however many strangers come
SMALL = 2**12  # bytes of a request that only names things
ANNOUNCEMENT = 2**19  # bytes of a reply without its objects: 70 for each of them, or an error in words
OBJECT = (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 2**16
)  # bytes of a request with an object; a header is smaller than a chunk
INLINE = 2**10  # bytes of content inside a message, where there should be none: Flower sends it as objects
DEPTH = 5  # message, content, record, array, chunk
OBJECTS = 2**12  # of one reply: 20 GiB in chunks
HASH = re.compile(r"[0-9a-f]{64}")
PUSHES = 8  # announcements of a reply: the SuperLink takes one, and a bad network makes it several
KEPT = 2**18  # objects with children that are remembered: four of each reply


@dataclass(frozen=True)
class Site:
    """Whoever holds a key that is registered."""

    node: int
    name: str
    key: bytes

    def __str__(self) -> str:
        return f"{ascii(self.name)[1:-1][:80]} (node {self.node})"


def key_in(headers: Mapping[str, str]) -> bytes:
    """The key that a request says it is signed with; ValueError if there is none."""
    return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)


def is_signed(headers: Mapping[str, str], key: bytes) -> bool:
    """Whether the holder of this key made the request, lately. Flower signs the time; TLS keeps it from thieves."""
    try:
        time = headers.get(TIMESTAMP_HEADER, "")
        age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
        signature = b64decode(headers.get(FLEET_HTTP_SIGNATURE_HEADER, ""), validate=True)
        recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return recent and verify_signature(bytes_to_public_key(key), time.encode("ascii"), signature)
    except (ValueError, TypeError):
        return False


class Register:
    """Who is registered, as the SuperLink knows it; it is asked when somebody comes who was not there before."""

    def __init__(self, look: Callable[[], Iterable[Registration]]) -> None:
        self._look = look
        self._sites: dict[bytes, Site] = {}
        self._looked = -LOOK_EVERY
        self._turn = asyncio.Lock()

    async def find(self, key: bytes) -> Site | None:
        """The site with this key. Who has been evicted is refused by the SuperLink itself."""
        if key not in self._sites:
            async with self._turn:
                if key not in self._sites and monotonic() - self._looked >= LOOK_EVERY:
                    self._looked = monotonic()
                    found = await asyncio.to_thread(self._look)
                    self._sites = {one.key: Site(one.node, one.name, one.key) for one in found if not one.evicted}
        return self._sites.get(key)


@dataclass(frozen=True)
class Route:
    """A path that is open to sites."""

    request: type[Message]
    limit: int = SMALL


# The fleet's interface but for its ways to register and unregister: keys are the operator's business.
ROUTES = {
    "/v1/fleet/activate-node": Route(ActivateNodeRequest),
    "/v1/fleet/deactivate-node": Route(DeactivateNodeRequest),
    "/v1/fleet/send-node-heartbeat": Route(SendNodeHeartbeatRequest),
    "/v1/fleet/pull-messages": Route(PullMessagesRequest),
    "/v1/fleet/push-messages": Route(PushMessagesRequest, ANNOUNCEMENT),
    "/v1/fleet/get-run": Route(GetRunRequest),
    "/v1/fleet/get-fab": Route(GetFabRequest),
    "/v1/fleet/push-object": Route(PushObjectRequest, OBJECT),
    "/v1/fleet/pull-object": Route(PullObjectRequest),
    "/v1/fleet/confirm-message-received": Route(ConfirmMessageReceivedRequest),
}


def fault_of(request: Message, node: int, key: bytes) -> str:
    """Why the holder of a key, who is this node, may not ask this; nothing if it may."""
    if isinstance(request, ActivateNodeRequest):
        return "" if request.public_key == key else "public key should be the one that signed, found another"
    claimed = request.node_id if isinstance(request, DeactivateNodeRequest) else request.node.node_id
    if claimed != node:
        return f"node should be {node}, found {claimed}"
    if isinstance(request, PushMessagesRequest):
        return _fault_of_reply(request, node)
    if isinstance(request, PushObjectRequest) and not request.session_id:
        return "an object should belong to a reply, found no session"
    return ""


def _fault_of_reply(request: PushMessagesRequest, node: int) -> str:
    """What is wrong with a reply, before its objects come. A message that is no reply would be taken for an order."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        found = len(request.messages_list), len(request.message_object_trees)
        return f"one message and one tree should be there, found {found[0]} and {found[1]}"
    message, tree = request.messages_list[0], request.message_object_trees[0]
    about = message.metadata
    if about.src_node_id != node:
        return f"sender should be {node}, found {about.src_node_id}"
    if not HASH.fullmatch(about.reply_to_message_id):
        return "a message of a site should be a reply, found one to no message"
    if about.dst_node_id != SUPERLINK_NODE_ID:
        return f"receiver should be the server, found {about.dst_node_id}"
    if about.message_id != tree.object_id:
        return "a tree should be its message's, found another's"
    if (size := message.content.ByteSize()) > INLINE:
        return f"content should be sent as objects, found {size} B in the message"
    return fault_of_tree(tree)


def fault_of_tree(tree: ObjectTree) -> str:
    """Why a tree of objects is refused: it is deeper or larger than a reply's, or names an object twice."""
    seen: set[str] = set()
    level, count = [tree], 1
    for _ in range(DEPTH):
        for one in level:
            if not HASH.fullmatch(one.object_id):
                return "an object should be named by its hash, found another name"
            if one.object_id in seen:
                return "an object should be once in a tree, found it twice"
            seen.add(one.object_id)
        count += sum(len(one.children) for one in level)
        if count > OBJECTS:
            return f"a tree should have at most {OBJECTS} objects, found more"
        level = [child for one in level for child in one.children]
    return f"a tree should be at most {DEPTH} deep, found more" if level else ""


@dataclass
class Allowance:
    """What a node has left of it. The server gives it a message when it is done with the last answer."""

    quota: int  # bytes
    bytes: int = 0
    pushes: int = 0

    def take(self, size: int, announces: bool) -> str:
        """Count a request; why it is too much, or nothing."""
        if announces and self.pushes >= PUSHES:
            return f"a message should be answered once, found {self.pushes} answers before this one"
        if self.bytes + size > self.quota:
            return f"an answer should have at most {self.quota} B (--quota), found {self.bytes + size}"
        self.bytes += size
        self.pushes += announces
        return ""

    def give_back(self, size: int, announces: bool) -> None:
        """A request was not taken after all."""
        self.bytes -= size
        self.pushes -= announces

    def renew(self) -> None:
        """The server has asked something new."""
        self.bytes = self.pushes = 0


class Shapes:
    """The children of every object that has some: the same at all times.

    The SuperLink keeps the children that an object had when it was first announced, and puts trees together from
    these. So trees that are small on their way could grow together behind the proxy, one below the leaves of the
    other, until following them takes for ever. Here an object that had children once has the same ones in every tree.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._children: OrderedDict[bytes, bytes] = OrderedDict()  # both as hashes

    def fault_of(self, tree: ObjectTree) -> str:
        """Why a tree that is small enough is refused; if it is not, it is remembered."""
        shapes: dict[bytes, bytes] = {}
        waiting = [tree]
        while waiting:
            one = waiting.pop()
            name = bytes.fromhex(one.object_id)
            shape = sha256("".join(child.object_id for child in one.children).encode()).digest()
            if self._children.get(name, shape) != shape:
                return "an object should have the children that it had before, found others"
            if one.children:
                shapes[name] = shape
                waiting += one.children
        self._children.update(shapes)
        while len(self._children) > self._kept:
            self._children.popitem(last=False)
        return ""
