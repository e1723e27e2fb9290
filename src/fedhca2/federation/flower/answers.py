"""Fetching the sites' answers from the SuperLink object by object, from the top down, each within its bounds.

Flower assembles whatever a site sent, and waits for the rest, before anyone can check it. Here an object is only
requested once its parent has been checked. An object that has not arrived is requested again later, and nothing of an
answer is kept until all of it has arrived: a slow site costs the others neither time nor memory.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from math import ceil
from time import monotonic

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from torch import Tensor

from fedhca2.federation.flower.arrivals import CHUNK, SMALL, Arrival, LostError, MisfitError, NotYetError, Source
from fedhca2.federation.flower.deploy.superlink import LinkLostError, RunEndedError
from fedhca2.federation.flower.internals import (
    ArrayChunk,
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
)
from fedhca2.federation.flower.records import (
    CANNOT,
    DTYPES,
    HEADER_RECORD,
    OWN,
    PIECE_BYTES,
    ROWS_RECORD,
    STYPE,
    Header,
    unsalt,
)
from fedhca2.federation.foreign_text import HEADER, Refused, plain, read_json, shown

# Flower's codes for a node that went away, with the order or half-way through its reply: this is not a failure.
GONE = {ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE}


Kind = type[InflatableObject]
Pull = Callable[[str, Kind, int], bytes]  # an object by name, of this kind and with at most this many bytes


@dataclass(frozen=True)
class Allowance:
    """What an answer may hold besides its header: one array of exactly this many values, or none."""

    values: int = 0
    wire: str = "float32"


@dataclass(frozen=True)
class Answer:
    """A well-formed answer of a site; its content is not checked yet."""

    header: Header
    rows: Tensor | None  # all rows, concatenated


@dataclass(frozen=True)
class Gone:
    """The site went away with the message, or half-way through its answer."""

    why: str


class Failed(Refused):
    """The site, or Flower at the site, reports a failure."""


class Answers:
    """The answers to sent messages."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._arrivals: dict[str, Arrival] = {}
        self._missing: dict[str, str] = {}  # by message, the object that had not arrived at the last attempt

    def take(self, message: str, node: int, allowance: Allowance, until: float) -> Answer | Refused | Gone | None:
        """The answer to a message that was sent to a node; None if it is not complete yet.

        `until` is the deadline for it, on the clock of `monotonic`.
        """
        try:
            arrival = self._arrivals.get(message) or self._source.find(message)
            if arrival is None:
                return None
            self._arrivals[message] = arrival
            answer = _failure(arrival, node) or self._open(message, arrival, allowance, until)
        except NotYetError:
            return None
        except LostError:
            answer = Gone("its answer was never completed")
        except MisfitError as error:
            answer = Refused(str(error))
        except (RunEndedError, LinkLostError):  # no site's fault
            raise
        except Exception as error:  # nothing in an answer may stop the server
            answer = Refused(f"answer should be readable, found {shown(error)}")
        self.forget(message)
        return answer

    def forget(self, message: str) -> bool:
        """Stop waiting for an answer, and release what the SuperLink holds of it and of the message.

        Returns False if the answer can still come: then call it again later.
        """
        self._missing.pop(message, None)
        return self._source.release(message, self._arrivals.pop(message, None))

    def _open(self, message: str, arrival: Arrival, allowance: Allowance, until: float) -> Answer | Refused:
        def pull(name: str, kind: Kind, limit: int) -> bytes:
            if monotonic() >= until:
                raise NotYetError
            self._missing[message] = name
            content = self._source.pull(name)
            if len(content) > limit + SMALL:
                raise MisfitError(f"{kind.__name__} should have at most {limit} B, found {len(content)} B")
            return content

        if message in self._missing:
            self._source.pull(self._missing[message])
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
    """The values of the only array that is allowed."""
    arrays = _names(pull(name, ArrayRecord, SMALL), ArrayRecord)
    if set(arrays) != {OWN}:
        raise MisfitError(f"arrays should be {OWN}, found {shown(list(arrays))}")
    dtype = DTYPES[allowance.wire]
    size = allowance.values * dtype.itemsize
    count = ceil(size / PIECE_BYTES)
    chunks = _chunks(pull(arrays[OWN], Array, 128 * count), allowance, count)
    rows = bytearray(size)
    for number in reversed(range(count)):  # what was sent last arrives last
        start = number * PIECE_BYTES
        chunk = unsalt(get_object_body(pull(chunks[number], ArrayChunk, CHUNK), ArrayChunk))
        if len(chunk) != min(PIECE_BYTES, size - start):
            raise MisfitError(f"array: expected pieces of {PIECE_BYTES} B, got one of {len(chunk)} B")
        rows[start : start + len(chunk)] = chunk
    values = torch.frombuffer(rows, dtype=dtype)
    return values.float() if dtype.is_floating_point else values


def _failure(arrival: Arrival, node: int) -> Refused | Gone | None:
    """Classify an arrival that is not an answer."""
    if arrival.code in GONE and arrival.node == SUPERLINK_NODE_ID:
        return Gone(plain(arrival.reason))
    if arrival.node not in (node, SUPERLINK_NODE_ID):
        return Refused("answer should come from the node that was asked, found another")
    return Failed(f"failed: {arrival.reason}") if arrival.code is not None else None


def _names(content: bytes, kind: Kind) -> dict[str, str]:
    """The names of an object's contents, and the SuperLink's names for them."""
    names = json.loads(get_object_body(content, kind))
    if not isinstance(names, dict):
        raise MisfitError(f"{kind.__name__} should be names of objects, found {shown(names)}")
    return names


def _chunks(content: bytes, allowance: Allowance, count: int) -> list[str]:
    """The pieces of an array in order, if the array fits."""
    array, children = json.loads(get_object_body(content, Array)), get_object_children_ids_from_object_content(content)
    found = (array["stype"], array["dtype"], array["shape"])
    if found != (STYPE, allowance.wire, [allowance.values]) or not count:
        wanted = f"{allowance.values} values of {STYPE} {allowance.wire}" if count else "none"
        raise MisfitError(f"array should be {wanted}, found {shown(found)}")
    places = array["arraychunk_ids"]
    if len(places) != count:
        raise MisfitError(f"array should come in {count} pieces, found {len(places)}")
    return [children[place] for place in places]
