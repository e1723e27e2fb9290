"""Answers of sites, taken from the SuperLink object by object and from the top down, each within its bounds.

Flower puts together whatever a site sent, and waits for whatever it has still to send, before anybody can look at it.
Here an object is asked for when the one above it has said that it fits. One that is not there yet is asked for another
time, and nothing is kept of an answer until all of it is there: a slow site costs the others neither time nor memory.
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
from fedhca2.federation.flower.internals import (
    ArrayChunk,
    InflatableObject,
    get_object_body,
    get_object_children_ids_from_object_content,
)
from fedhca2.federation.flower.records import CANNOT, DTYPES, HEADER_RECORD, OWN, ROWS_RECORD, STYPE, Header
from fedhca2.federation.gate import HEADER, Refused, plain, read_json, shown

# Flower's word for a node that went away, with the order or half-way through its reply: nobody has failed.
GONE = {ErrorCode.NODE_UNAVAILABLE, ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE}


Kind = type[InflatableObject]
Pull = Callable[[str, Kind, int], bytes]  # an object by its name, of this kind and of so many bytes at most


@dataclass(frozen=True)
class Allowance:
    """What an answer may hold beside its header: one array of exactly so many values, or none."""

    values: int = 0
    wire: str = "float32"


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
    values = torch.frombuffer(rows, dtype=dtype)
    return values.float() if dtype.is_floating_point else values


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
