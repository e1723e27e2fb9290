"""Fetching the sites' answers from the SuperLink object by object, from the top down, each within its bounds.

Flower assembles whatever a site sent, and waits for the rest, before anyone can check it. Here an object is only
requested once its parent has been checked. An object that has not arrived is requested again later, and nothing of an
answer is stored until all of it has arrived: a slow site costs the others neither time nor memory.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from time import monotonic

import httpx
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE, SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp.grid import Grid
from torch import Tensor

from fedhca2.federation.flower import internals, records
from fedhca2.federation.flower.deploy.superlink import LinkLostError, RunEndedError
from fedhca2.federation.flower.internals import HttpGrid, InflatableObject
from fedhca2.federation.flower.records import HEADER_RECORD, ROWS_RECORD
from fedhca2.federation.gate import MAX_HEADER, UnusableError, read_json, shown

MAX_CHUNK_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE  # of an array in one object
SMALL_BYTES = 2**16  # of an object that only names others, and of what surrounds a body
Kind = type[InflatableObject]
Pull = Callable[[str, Kind, int], bytes]  # an object by name, of this kind and with at most this many bytes


class NotYetError(Exception):
    """An object that was announced but has not arrived."""


@dataclass(frozen=True)
class Allowance:
    """What an answer may hold besides its header: one array of exactly this many values, or none."""

    values: int = 0
    wire: str = "float32"


@dataclass(frozen=True)
class SiteAnswer:
    """A well-formed answer of a site; its content is not checked yet."""

    header: records.Header
    rows: Tensor | None  # all rows, concatenated


class GoneError(UnusableError):
    """The site went away with the message, or half-way through its answer."""


class FailedError(UnusableError):
    """The site, or Flower at the site, reports a failure."""


@dataclass(frozen=True)
class Arrival:
    """An announced answer."""

    node: int
    object: str
    code: int | None = None  # the error code, if it is an error
    reason: str = ""


class MemorySource:
    """Answers that are already in this process, as in a simulation."""

    def __init__(self, grid: Grid) -> None:
        self.grid = grid
        self.objects: dict[str, dict[str, InflatableObject]] = {}  # by answer

    def find(self, message: str) -> Arrival | None:
        """The answer to a message, once announced; each is announced once."""
        for reply in self.grid.pull_messages([message]):
            if reply.has_error():
                return Arrival(reply.metadata.src_node_id, "", reply.error.code, reply.error.reason or "")
            with internals.no_object_id_recompute():
                self.objects[reply.object_id] = internals.get_all_nested_objects(reply)
                return Arrival(reply.metadata.src_node_id, reply.object_id)
        return None

    def pull(self, name: str) -> bytes:
        """Fetch an object of an answer."""
        return next(objects[name] for objects in self.objects.values() if name in objects).deflate()

    def release(self, message: str, arrival: Arrival | None) -> bool:
        """Release the objects of a message and of its answer, if that has arrived; False if it can still come."""
        if arrival:
            self.objects.pop(arrival.object, None)
        return True


class SuperLinkSource:
    """Answers that sites have sent, or are sending, to a SuperLink."""

    def __init__(self, grid: HttpGrid) -> None:
        self.client, self.node, self.run = internals.runtime_client_of(grid), grid.node, grid.run.run_id

    def find(self, message: str) -> Arrival | None:
        """The answer to a message, once announced; each is announced once."""
        # One at a time: the SuperLink hands out each once, so one that is too large must not affect others.
        for reply in self.client.PullMessages(PullAppMessagesRequest(message_ids=[message])).messages_list:
            about, error = reply.metadata, reply.error if reply.HasField("error") else None
            if about.reply_to_message_id == message:
                code, reason = (error.code, error.reason) if error else (None, "")
                return Arrival(about.src_node_id, about.message_id, code, reason)
        return None

    def pull(self, name: str) -> bytes:
        """Fetch an object of an answer; raises NotYetError if it has not arrived."""
        answer = self.client.PullObject(PullObjectRequest(node=self.node, run_id=self.run, object_id=name))
        if not answer.object_found:
            raise GoneError("its answer was never completed")
        if not answer.object_available:
            raise NotYetError
        return bytes(answer.object_content)

    def release(self, message: str, arrival: Arrival | None) -> bool:
        """Release the objects of a message and of its answer, if that has arrived; False if it can still come."""
        arrival = arrival or self.find(message)
        for name in (message, arrival.object) if arrival else (message,):
            # A site that never confirms its order would otherwise keep it here until the run ends.
            request = ConfirmMessageReceivedRequest(node=self.node, run_id=self.run, message_object_id=name)
            with suppress(httpx.HTTPStatusError):  # a site may have announced objects that cannot be released
                self.client.ConfirmMessageReceived(request)
        return arrival is not None


class Answers:
    """The answers to sent messages."""

    def __init__(self, source: MemorySource | SuperLinkSource) -> None:
        self._source = source
        self._arrivals: dict[str, Arrival] = {}
        self._missing: dict[str, str] = {}  # by message, the object that had not arrived at the last attempt

    @classmethod
    def of(cls, grid: Grid) -> "Answers":
        """The answers to a grid's messages."""
        return cls(SuperLinkSource(grid) if isinstance(grid, HttpGrid) else MemorySource(grid))

    def take(self, message: str, node: int, allowance: Allowance, until: float) -> SiteAnswer | UnusableError | None:
        """The answer to a message; None if it is not complete yet.

        :param node: the node that the message was sent to.
        :param until: the deadline for the answer, on the clock of `monotonic`.
        """
        try:
            arrival = self._arrivals.get(message) or self._source.find(message)
            if arrival is None:
                return None
            self._arrivals[message] = arrival
            answer: SiteAnswer | UnusableError = self._open(message, arrival, node, allowance, until)
        except NotYetError:
            return None
        except (RunEndedError, LinkLostError):  # no site's fault
            raise
        except Exception as error:  # nothing in an answer may stop the server
            answer = UnusableError.of(error)
        self.forget(message)
        return answer

    def forget(self, message: str) -> bool:
        """Stop waiting for an answer, and release what the SuperLink holds of it and of the message.

        Returns False if the answer can still come: then call it again later.
        """
        self._missing.pop(message, None)
        return self._source.release(message, self._arrivals.pop(message, None))

    def _open(self, message: str, arrival: Arrival, node: int, allowance: Allowance, until: float) -> SiteAnswer:
        def pull(name: str, kind: Kind, limit: int) -> bytes:
            if monotonic() >= until:
                raise NotYetError
            self._missing[message] = name
            content = self._source.pull(name)
            if len(content) > limit + SMALL_BYTES:
                raise UnusableError(f"{kind.__name__}: expected at most {limit} B, got {len(content)} B")
            return content

        # Flower's codes for a node that went away, with the order or half-way through its reply: this is not a failure.
        gone = (ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE)
        if arrival.code in gone and arrival.node == SUPERLINK_NODE_ID:
            raise GoneError(arrival.reason)
        if arrival.node not in (node, SUPERLINK_NODE_ID):
            raise UnusableError("answer: expected one from the node that was asked, got another's")
        if arrival.code is not None:
            raise FailedError(f"failed: {arrival.reason}")
        if message in self._missing:
            self._source.pull(self._missing[message])
        content = internals.get_object_children_ids_from_object_content(pull(arrival.object, Message, SMALL_BYTES))
        if len(content) != 1:
            raise UnusableError(f"message: expected one content, got {len(content)}")
        named = _names(pull(content[0], RecordDict, SMALL_BYTES), RecordDict)
        if not {HEADER_RECORD} <= set(named) <= {HEADER_RECORD, ROWS_RECORD}:
            raise UnusableError(f"records: expected {HEADER_RECORD} and {ROWS_RECORD}, got {shown(list(named))}")
        header = read_json(ConfigRecord.inflate(pull(named[HEADER_RECORD], ConfigRecord, 4 * MAX_HEADER)).get("json"))
        if records.CANNOT in header:
            why = header[records.CANNOT]
            raise UnusableError(f"failed: {why if isinstance(why, str) else shown(why)}")
        return SiteAnswer(header, _rows(pull, named[ROWS_RECORD], allowance) if ROWS_RECORD in named else None)


def _rows(pull: Pull, name: str, allowance: Allowance) -> Tensor:
    """The values of the only array that is allowed."""
    arrays = _names(pull(name, ArrayRecord, SMALL_BYTES), ArrayRecord)
    if set(arrays) != {records.OWN}:
        raise UnusableError(f"arrays: expected {records.OWN}, got {shown(list(arrays))}")
    dtype = records.DTYPES[allowance.wire]
    size = allowance.values * dtype.itemsize
    count = ceil(size / records.PIECE_BYTES)
    chunks = _chunks(pull(arrays[records.OWN], Array, 128 * count), allowance, count)
    rows = bytearray(size)
    for number in reversed(range(count)):  # what was sent last arrives last
        start = number * records.PIECE_BYTES
        content = pull(chunks[number], internals.ArrayChunk, MAX_CHUNK_BYTES)
        chunk = records.unsalt(internals.get_object_body(content, internals.ArrayChunk))
        if len(chunk) != min(records.PIECE_BYTES, size - start):
            raise UnusableError(f"array: expected pieces of {records.PIECE_BYTES} B, got one of {len(chunk)} B")
        rows[start : start + len(chunk)] = chunk
    values = torch.frombuffer(rows, dtype=dtype)
    return values.float() if dtype.is_floating_point else values


def _names(content: bytes, kind: Kind) -> dict[str, str]:
    """The names of an object's contents, and the SuperLink's names for them."""
    names = json.loads(internals.get_object_body(content, kind))
    if not isinstance(names, dict):
        raise UnusableError(f"{kind.__name__}: expected names of objects, got {shown(names)}")
    return names


def _chunks(content: bytes, allowance: Allowance, count: int) -> list[str]:
    """The pieces of an array in order, if the array fits."""
    array = json.loads(internals.get_object_body(content, Array))
    got = (array["stype"], array["dtype"], array["shape"])
    if got != (records.STYPE, allowance.wire, [allowance.values]) or not count:
        expected = f"{allowance.values} values of {records.STYPE} {allowance.wire}" if count else "none"
        raise UnusableError(f"array: expected {expected}, got {shown(got)}")
    numbers = array["arraychunk_ids"]
    if len(numbers) != count:
        raise UnusableError(f"array: expected {count} pieces, got {len(numbers)}")
    children = internals.get_object_children_ids_from_object_content(content)
    return [children[number] for number in numbers]
