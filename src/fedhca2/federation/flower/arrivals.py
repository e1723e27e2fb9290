"""Arriving answers: which ones exist, and their objects, one at a time."""

from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

import httpx
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp.grid import Grid

from fedhca2.federation.flower.internals import (
    HttpGrid,
    InflatableObject,
    ProtobufCall,
    ProtobufRequestContext,
    add_interceptor,
    get_all_nested_objects,
    http_client_of,
    no_object_id_recompute,
    runtime_client_of,
)
from fedhca2.federation.foreign_text import HEADER

CHUNK = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes of an array in one object
SMALL = 2**16  # bytes of an object that only names others, and of what surrounds a body
RESPONSE = max(CHUNK, 4 * HEADER) + 2 * SMALL  # most bytes that the SuperLink forwards from a site at a time


class NotYetError(Exception):
    """An object that was announced but has not arrived."""


class LostError(Exception):
    """An object that will never arrive."""


class MisfitError(Exception):
    """An object that is not what it should be."""


@dataclass(frozen=True)
class Arrival:
    """An announced answer."""

    node: int
    object: str
    code: int | None = None  # the error code, if it is an error
    reason: str = ""


class Source(Protocol):
    """The source of answers."""

    def find(self, message: str) -> Arrival | None:
        """The answer to a message, once announced; each is announced once."""

    def pull(self, name: str) -> bytes:
        """Fetch an object of an answer; raises NotYetError if it has not arrived."""

    def release(self, message: str, arrival: Arrival | None) -> bool:
        """Release the objects of a message and of its answer, if that has arrived; False if it can still come."""


def source_of(grid: Grid) -> Source:
    """The source of a grid's answers."""
    return _SuperLink(grid) if isinstance(grid, HttpGrid) else _InMemory(grid)


class _InMemory:
    """Answers that are already in this process, as in a simulation."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.objects: dict[str, dict[str, InflatableObject]] = {}  # by answer

    def find(self, message: str) -> Arrival | None:
        for reply in self.grid.pull_messages([message]):
            if reply.has_error():
                return Arrival(reply.metadata.src_node_id, "", reply.error.code, reply.error.reason or "")
            with no_object_id_recompute():
                self.objects[reply.object_id] = get_all_nested_objects(reply)
                return Arrival(reply.metadata.src_node_id, reply.object_id)
        return None

    def pull(self, name: str) -> bytes:
        return next(objects[name] for objects in self.objects.values() if name in objects).deflate()

    def release(self, message: str, arrival: Arrival | None) -> bool:
        if arrival:
            self.objects.pop(arrival.object, None)
        return True


class _SuperLink:
    """Answers that sites have sent, or are sending, to a SuperLink."""

    def __init__(self, grid: HttpGrid) -> None:
        self.client, self.node, self.run = runtime_client_of(grid), grid.node, grid.run.run_id
        add_interceptor(self.client, _Bounded(http_client_of(self.client)))

    def find(self, message: str) -> Arrival | None:
        # One at a time: the SuperLink hands out each once, so one that is too large must not affect others.
        for reply in self.client.PullMessages(PullAppMessagesRequest(message_ids=[message])).messages_list:
            about, error = reply.metadata, reply.error if reply.HasField("error") else None
            if about.reply_to_message_id == message:
                code, reason = (error.code, error.reason) if error else (None, "")
                return Arrival(about.src_node_id, about.message_id, code, reason)
        return None

    def pull(self, name: str) -> bytes:
        answer = self.client.PullObject(PullObjectRequest(node=self.node, run_id=self.run, object_id=name))
        if not answer.object_found:
            raise LostError
        if not answer.object_available:
            raise NotYetError
        return bytes(answer.object_content)

    def release(self, message: str, arrival: Arrival | None) -> bool:
        arrival = arrival or self.find(message)
        for name in (message, arrival.object) if arrival else (message,):
            # A site that never confirms its order would otherwise keep it here until the run ends.
            request = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run, message_object_id=name)
            with suppress(httpx.HTTPStatusError):  # a site may have announced objects that cannot be released
                self.client.ConfirmMessageReceived(request)
        return arrival is not None


class _Bounded:
    """Bounds what is read of the SuperLink's responses."""

    CALLS = frozenset({"/flwr.proto.Runtime/PullMessages", "/flwr.proto.Runtime/PullObject"})

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        if context.rpc_method not in self.CALLS:
            return call_next(context)
        context.request.headers["accept-encoding"] = "identity"  # no compression, which could expand a small response
        response = self.http.send(context.request, stream=True)
        content = bytearray()
        try:
            for piece in response.iter_raw():
                content += piece
                if len(content) > RESPONSE:
                    raise MisfitError(f"an object should have at most {RESPONSE} B, found more")
        finally:
            response.close()
        return httpx.Response(response.status_code, content=bytes(content), request=context.request)
