"""Answers as they arrive: which there are, and the objects that they are made of, one at a time."""

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
from fedhca2.federation.gate import HEADER

CHUNK = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes of an array in one object
SMALL = 2**16  # bytes of an object that only names others, and of what is around a body
RESPONSE = max(CHUNK, 4 * HEADER) + 2 * SMALL  # bytes of whatever the SuperLink passes on from a site at a time


class NotYetError(Exception):
    """An object that has been announced and has still to come."""


class LostError(Exception):
    """An object that will never come."""


class MisfitError(Exception):
    """An object that is not what it should be."""


@dataclass
class Arrival:
    """An answer that has been announced."""

    node: int
    object: str
    code: int | None = None  # of the error that it is
    reason: str = ""
    missing: str = ""  # the object that was not there yet when it was looked for


class Source(Protocol):
    """Where answers are taken from."""

    def find(self, message: str) -> Arrival | None:
        """The answer to a message, once it has been announced; it is announced once."""

    def pull(self, name: str) -> bytes:
        """An object of an answer; NotYetError if it has still to come."""

    def drop(self, name: str) -> None:
        """Let go of an answer's objects."""


def source_of(grid: Grid) -> Source:
    """Where a grid's answers are taken from."""
    return _SuperLink(grid) if isinstance(grid, HttpGrid) else _InMemory(grid)


class _InMemory:
    """Answers that are in this process already, as in a simulation."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.objects: dict[str, dict[str, InflatableObject]] = {}  # of each answer

    def find(self, message: str) -> Arrival | None:
        for found in self.grid.pull_messages([message]):
            if found.has_error():
                return Arrival(found.metadata.src_node_id, "", found.error.code, found.error.reason or "")
            with no_object_id_recompute():
                self.objects[found.object_id] = get_all_nested_objects(found)
                return Arrival(found.metadata.src_node_id, found.object_id)
        return None

    def pull(self, name: str) -> bytes:
        return next(objects[name] for objects in self.objects.values() if name in objects).deflate()

    def drop(self, name: str) -> None:
        self.objects.pop(name, None)


class _SuperLink:
    """Answers that sites have sent, or are sending, to a SuperLink."""

    def __init__(self, grid: HttpGrid) -> None:
        self.client, self.node, self.run = runtime_client_of(grid), grid.node, grid.run.run_id
        add_interceptor(self.client, _Bounded(http_client_of(self.client)))

    def find(self, message: str) -> Arrival | None:
        # One at a time: the SuperLink gives each away once, so that one that is too large must not take others along.
        for found in self.client.PullMessages(PullAppMessagesRequest(message_ids=[message])).messages_list:
            about, error = found.metadata, found.error if found.HasField("error") else None
            if about.reply_to_message_id == message:
                code, reason = (error.code, error.reason) if error else (None, "")
                return Arrival(about.src_node_id, about.message_id, code, reason)
        return None

    def pull(self, name: str) -> bytes:
        found = self.client.PullObject(PullObjectRequest(node=self.node, run_id=self.run, object_id=name))
        if not found.object_found:
            raise LostError
        if not found.object_available:
            raise NotYetError
        return bytes(found.object_content)

    def drop(self, name: str) -> None:
        request = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run, message_object_id=name)
        with suppress(httpx.HTTPStatusError):  # what a site announced may be none that can be let go of
            self.client.ConfirmMessageReceived(request)


class _Bounded:
    """Reads no more than it should of what the SuperLink passes on from sites."""

    CALLS = frozenset({"/flwr.proto.Runtime/PullMessages", "/flwr.proto.Runtime/PullObject"})

    def __init__(self, http: httpx.Client) -> None:
        self.http = http

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        if context.rpc_method not in self.CALLS:
            return call_next(context)
        context.request.headers["accept-encoding"] = "identity"  # what is small here stays small
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
