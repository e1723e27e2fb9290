"""What a site may ask of the SuperLink, by path, and what is wrong with a request."""

import re
from dataclasses import dataclass

from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SUPERLINK_NODE_ID
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

SMALL = 2**12  # bytes of a request that only names things
ANNOUNCEMENT = 2**19  # bytes of a reply without its objects: 70 for each of them, or an error in words
OBJECT = (
    FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE + 2**16
)  # bytes of a request with an object; a header is smaller than a chunk
INLINE = 2**10  # bytes of content inside a message, where there should be none: Flower sends it as objects
DEPTH = 5  # message, content, record, array, chunk
OBJECTS = 2**12  # of one reply: 20 GiB in chunks
HASH = re.compile(r"[0-9a-f]{64}")


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
