"""Answers of sites, taken from the SuperLink object by object and from the top down, each within its bounds.

Flower puts together whatever a site sent, and waits for whatever it has still to send, before anybody can look at it.
Here an object is asked for when the one above it has said that it fits. One that is not there yet is asked for another
time, and nothing is kept of an answer until all of it is there: a slow site costs the others neither time nor memory.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from time import monotonic
from typing import Protocol

import httpx
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp.grid import Grid
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    no_object_id_recompute,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.superlink.grid import HttpGrid
from torch import Tensor

from fedhca2.federation.flower.records import CANNOT, DTYPES, HEADER_RECORD, OWN, ROWS_RECORD, STYPE, Header, Wire
from fedhca2.federation.gate import HEADER, Refused, plain, read_json, shown

CHUNK = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # bytes of an array in one object
SMALL = 2**16  # bytes of an object that only names others, and of what is around a body
RESPONSE = max(CHUNK, 4 * HEADER) + 2 * SMALL  # bytes of whatever the SuperLink passes on from a site at a time
# Flower's word for a node that went away, with the order or half-way through its reply: nobody has failed.
GONE = {ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE}


Kind = type[InflatableObject]
Pull = Callable[[str, Kind, int], bytes]  # an object by its name, of this kind and of so many bytes at most


class NotYetError(Exception):
    """An object that has been announced and has still to come."""


class LostError(Exception):
    """An object that will never come."""


class MisfitError(Exception):
    """An object that is not what it should be."""


@dataclass(frozen=True)
class Allowance:
    """What an answer may hold beside its header: one array of exactly so many values, or none."""

    values: int = 0
    wire: Wire = "float32"


@dataclass(frozen=True)
class Answer:
    """What a site answered; its form is right, and what it says has still to be checked."""

    header: Header
    rows: Tensor | None  # all of them, one after another


@dataclass(frozen=True)
class Gone:
    """The site went away with the message, or half-way through its answer."""

    why: str


class Failed(Refused):
    """The site, or Flower at the site, says that it failed."""


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


class Answers:
    """The answers to messages that were sent."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._arrivals: dict[str, Arrival] = {}

    def take(self, message: str, node: int, allowance: Allowance, until: float) -> Answer | Refused | Gone | None:
        """The answer to a message that a node was sent; nothing if not all of it is there yet.

        `until` is when there is no more time to look for it, on the clock of `monotonic`.
        """
        try:
            arrival = self._arrivals.get(message) or self._source.find(message)
            if arrival is None:
                return None
            self._arrivals[message] = arrival
            answer = _failure(arrival, node) or self._open(arrival, allowance, until)
        except NotYetError:
            return None
        except LostError:
            answer = Gone("its answer never came to its end")
        except MisfitError as error:
            answer = Refused(str(error))
        except Exception as error:  # an answer comes from outside: nothing in it may stop the server
            answer = Refused(f"answer should be readable, found {shown(error)}")
        self.forget(message)
        return answer

    def forget(self, message: str) -> None:
        """Nobody waits for this answer any more."""
        if arrival := self._arrivals.pop(message, None):
            self._source.drop(arrival.object)

    def _open(self, arrival: Arrival, allowance: Allowance, until: float) -> Answer | Refused:
        def pull(name: str, kind: Kind, limit: int) -> bytes:
            if monotonic() >= until:
                raise NotYetError
            arrival.missing = name
            content = self._source.pull(name)
            if len(content) > limit + SMALL:
                raise MisfitError(f"{kind.__name__} should have at most {limit} B, found {len(content)} B")
            return content

        if arrival.missing:
            self._source.pull(arrival.missing)
        content = get_object_children_ids_from_object_content(pull(arrival.object, Message, SMALL))
        if len(content) != 1:
            raise MisfitError(f"message should have one content, found {len(content)}")
        records = _names(pull(content[0], RecordDict, SMALL), RecordDict)
        if not {HEADER_RECORD} <= set(records) <= {HEADER_RECORD, ROWS_RECORD}:
            raise MisfitError(f"records should be {HEADER_RECORD} and {ROWS_RECORD}, found {shown(list(records))}")
        header = read_json(ConfigRecord.inflate(pull(records[HEADER_RECORD], ConfigRecord, 4 * HEADER)).get("json"))
        if isinstance(header, Refused):
            return header
        if CANNOT in header:
            return Refused(f"failed: {header[CANNOT] if isinstance(header[CANNOT], str) else shown(header[CANNOT])}")
        return Answer(header, _rows(pull, records[ROWS_RECORD], allowance) if ROWS_RECORD in records else None)


def _rows(pull: Pull, name: str, allowance: Allowance) -> Tensor:
    """The values of the one array that there may be."""
    arrays = _names(pull(name, ArrayRecord, SMALL), ArrayRecord)
    if set(arrays) != {OWN}:
        raise MisfitError(f"arrays should be {OWN}, found {shown(list(arrays))}")
    dtype = DTYPES[allowance.wire]
    size = allowance.values * dtype.itemsize
    count = ceil(size / CHUNK)
    chunks = _chunks(pull(arrays[OWN], Array, 128 * count), allowance, count)
    rows = bytearray(size)
    for number in reversed(range(count)):  # what was sent last comes last
        start = number * CHUNK
        chunk = get_object_body(pull(chunks[number], ArrayChunk, CHUNK), ArrayChunk)
        if len(chunk) != min(CHUNK, size - start):
            raise MisfitError(f"array should come in pieces of {CHUNK} B, found one of {len(chunk)} B")
        rows[start : start + len(chunk)] = chunk
    return torch.frombuffer(rows, dtype=dtype).float()


def _failure(arrival: Arrival, node: int) -> Refused | Gone | None:
    """What an arrival is if it is no answer."""
    if arrival.code in GONE and arrival.node == SUPERLINK_NODE_ID:
        return Gone(plain(arrival.reason))
    if arrival.node not in (node, SUPERLINK_NODE_ID):
        return Refused("answer should come from the node that was asked, found another")
    return Failed(f"failed: {arrival.reason}") if arrival.code is not None else None


def _names(content: bytes, kind: Kind) -> dict[str, str]:
    """The names of what an object holds, and by which names the SuperLink knows it."""
    names = json.loads(get_object_body(content, kind))
    if not isinstance(names, dict):
        raise MisfitError(f"{kind.__name__} should be names of objects, found {shown(names)}")
    return names


def _chunks(content: bytes, allowance: Allowance, count: int) -> list[str]:
    """The pieces of an array, one after another, if it is one that fits."""
    array, children = json.loads(get_object_body(content, Array)), get_object_children_ids_from_object_content(content)
    found = (array["stype"], array["dtype"], array["shape"])
    if found != (STYPE, allowance.wire, [allowance.values]) or not count:
        wanted = f"{allowance.values} values of {STYPE} {allowance.wire}" if count else "none"
        raise MisfitError(f"array should be {wanted}, found {shown(found)}")
    places = array["arraychunk_ids"]
    if len(places) != count:
        raise MisfitError(f"array should come in {count} pieces, found {len(places)}")
    return [children[place] for place in places]


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
        self.client, self.node, self.run = grid._runtime_client, grid.node, grid.run.run_id
        if not any(isinstance(each, _Bounded) for each in self.client._interceptors):
            self.client._interceptors = (*self.client._interceptors, _Bounded(self.client._client))

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
