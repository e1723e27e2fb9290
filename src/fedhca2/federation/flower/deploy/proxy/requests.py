"""A site's requests: who sends them, what and how much they may ask of the SuperLink, and what is wrong with them."""

import asyncio
import re
from base64 import b64decode
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

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

from fedhca2.federation.flower.deploy.control import Registration
from fedhca2.federation.flower.internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    bytes_to_public_key,
    verify_signature,
)

LOOK_EVERY = 1.0  # seconds between checks of the registrations, however many strangers come
SMALL = 2**12  # bytes of a request that only names things
ANNOUNCEMENT = 2**19  # bytes of a reply without its objects: 70 for each of them, or an error text
OBJECT = (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 2**16
)  # bytes of a request with an object; a header is smaller than a chunk
INLINE = 2**10  # bytes of content inside a message, which should be empty: Flower sends content as objects
DEPTH = 5  # message, content, record, array, chunk
OBJECTS = 2**12  # in one reply: 20 GiB in chunks
HASH = re.compile(r"[0-9a-f]{64}")
PUSHES = 8  # announcements per reply: the SuperLink accepts one, and a bad network repeats it
TREES = 8  # of a node's messages, and of its answers, to remember: the server releases each before the next but one


@dataclass(frozen=True)
class Site:
    """The holder of a registered key."""

    node: int
    name: str
    key: bytes

    def __str__(self) -> str:
        return f"{ascii(self.name)[1:-1][:80]} (node {self.node})"


def key_in(headers: Mapping[str, str]) -> bytes:
    """The key that a request claims to be signed with; raises ValueError if there is none."""
    return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)


def is_signed(headers: Mapping[str, str], key: bytes) -> bool:
    """Whether the holder of this key recently made the request. Flower signs the time; TLS keeps it from thieves."""
    try:
        time = headers.get(TIMESTAMP_HEADER, "")
        age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
        signature = b64decode(headers.get(FLEET_HTTP_SIGNATURE_HEADER, ""), validate=True)
        recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return recent and verify_signature(bytes_to_public_key(key), time.encode("ascii"), signature)
    except (ValueError, TypeError):
        return False


class Register:
    """The registered keys, as the SuperLink knows them; it is asked again when an unknown key appears."""

    def __init__(self, look: Callable[[], Iterable[Registration]]) -> None:
        self._look = look
        self._sites: dict[bytes, Site] = {}
        self._looked = -LOOK_EVERY
        self._turn = asyncio.Lock()

    async def find(self, key: bytes) -> Site | None:
        """The site with this key. The SuperLink itself refuses evicted sites."""
        if key not in self._sites:
            async with self._turn:
                if key not in self._sites and monotonic() - self._looked >= LOOK_EVERY:
                    self._looked = monotonic()
                    registrations = await asyncio.to_thread(self._look)
                    self._sites = {
                        one.key: Site(one.node, one.name, one.key) for one in registrations if not one.evicted
                    }
        return self._sites.get(key)


@dataclass(frozen=True)
class Route:
    """A path that is open to sites."""

    request: type[Message]
    limit: int = SMALL


# The fleet interface, except registering and unregistering: the operator manages keys.
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


def claimed_node(request: Any) -> int:
    """The number that a node gives as its own; 0 if none."""
    if isinstance(request, ActivateNodeRequest):
        return 0
    return int(request.node_id if isinstance(request, DeactivateNodeRequest) else request.node.node_id)


def fault_of(request: Message, node: int, key: bytes) -> str:
    """Why this node, the holder of a key, may not make this request; empty if it may."""
    if isinstance(request, ActivateNodeRequest):
        return "" if request.public_key == key else "public key should be the one that signed, found another"
    if (claimed := claimed_node(request)) != node:
        return f"node should be {node}, found {claimed}"
    if isinstance(request, PushMessagesRequest):
        return _fault_of_reply(request, node)
    if isinstance(request, PushObjectRequest) and not request.session_id:
        return "an object should belong to a reply, found no session"
    return ""


def _fault_of_reply(request: PushMessagesRequest, node: int) -> str:
    """What is wrong with a reply, before its objects come. Anything but a reply would be treated as an order."""
    if len(request.messages_list) != 1 or len(request.message_object_trees) != 1:
        counts = len(request.messages_list), len(request.message_object_trees)
        return f"a request should have one message and one tree, found {counts[0]} and {counts[1]}"
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
                return "an object should appear once in a tree, found it twice"
            seen.add(one.object_id)
        count += sum(len(one.children) for one in level)
        if count > OBJECTS:
            return f"a tree should have at most {OBJECTS} objects, found more"
        level = [child for one in level for child in one.children]
    return f"a tree should be at most {DEPTH} deep, found more" if level else ""


@dataclass
class Allowance:
    """What a node may still send. The server sends it a message once it is done with the last answer."""

    quota: int  # bytes
    bytes: int = 0
    pushes: int = 0

    def take(self, size: int, announces: bool) -> str:
        """Count a request; returns the reason if it is too much."""
        if announces and self.pushes >= PUSHES:
            return f"a message should be answered once, found {self.pushes} answers before this one"
        if self.bytes + size > self.quota:
            return f"an answer should have at most {self.quota} B (--quota), found {self.bytes + size}"
        self.bytes += size
        self.pushes += announces
        return ""

    def give_back(self, size: int, announces: bool) -> None:
        """Undo the count of a request that was not accepted."""
        self.bytes -= size
        self.pushes -= announces

    def renew(self) -> None:
        """The server has sent a new message."""
        self.bytes = self.pushes = 0


class Objects:
    """The objects that a SuperLink may hold, by the trees in which they were announced.

    A SuperLink names objects by their content and keeps an object's children from its first announcement. A tree with
    an object that is already there would change another tree, or leave objects without a parent, which nobody releases.
    So the tree of an answer must consist of new objects. Those of honest sites do, since every message has its salt.
    """

    def __init__(self) -> None:
        self._trees: dict[tuple[int, bool], OrderedDict[str, ObjectTree]] = {}  # by node, and whether they are answers
        self._holders = Counter[str]()  # the number of trees that an object is in

    def note_order(self, node: int, tree: ObjectTree) -> None:
        """Remember a tree that a node has received."""
        self._add((node, False), tree)

    def claim(self, node: int, tree: ObjectTree) -> bool:
        """Remember the tree of a node's answer; False if it already is.

        Raises ValueError if one of its objects is in another tree.
        """
        if self._trees.get((node, True), OrderedDict()).get(tree.object_id) == tree:
            return False
        if any(self._holders[name] for name in names_in(tree)):
            raise ValueError("an answer: expected new objects, got one that was sent before")
        self._add((node, True), tree)
        return True

    def release(self, node: int, tree: ObjectTree) -> None:
        """Forget the tree of an answer that the SuperLink has not accepted."""
        if self._trees[node, True].pop(tree.object_id, None):
            self._remove(tree)

    def _add(self, sender: tuple[int, bool], tree: ObjectTree) -> None:
        trees = self._trees.setdefault(sender, OrderedDict())
        if tree.object_id not in trees:
            trees[tree.object_id] = tree
            self._holders.update(names_in(tree))
            if len(trees) > TREES:
                self._remove(trees.popitem(last=False)[1])

    def _remove(self, tree: ObjectTree) -> None:
        for name in names_in(tree):
            self._holders[name] -= 1
            if not self._holders[name]:
                del self._holders[name]


def names_in(tree: ObjectTree) -> Iterator[str]:
    """The names of all objects of a tree."""
    yield tree.object_id
    for child in tree.children:
        yield from names_in(child)
