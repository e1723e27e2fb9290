"""Orders, replies and profiles as Flower records: a JSON header, and flat arrays of rows.

A header gives the position of each row. A row that several clients get is in a separate array, which is the same object
in each of their messages, so it is hashed and pushed once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from secrets import token_bytes, token_hex
from typing import Any, Literal

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from torch import Tensor

from fedhca2.experiment.clients import NAME as PLAIN_NAME
from fedhca2.federation.foreign_text import NAME, Refused, plain, read_json, shown
from fedhca2.messages import (
    Addend,
    Effect,
    Order,
    Profile,
    Reply,
    deliveries_as_data,
    deliveries_from_data,
    reply_as_data,
)
from fedhca2.params import Layout, Slot

Wire = Literal["float32", "bfloat16"]
MASKED = "int32"  # wire format of masked rows
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, MASKED: torch.int32}
STYPE = "fedhca2.salted_rows"  # little-endian values, concatenated, in chunks that begin with a salt
SALT_BYTES = 16
PIECE_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE - SALT_BYTES  # of values in one of Flower's chunks
HEADER_RECORD, ROWS_RECORD, OWN = "header", "rows", "own"
STAGE = "stage"  # in the header of a message of secure aggregation: its stage
CANNOT = "cannot"  # in the header of a site that cannot do what it was asked: the reason
MOST_IMAGES = 10**9
MOST_TENSORS, MOST_VALUES = 5_000, 2**36  # of a row of a client that describes itself
FLAGS = ("finish", "compare", "evaluate", "train")  # of an order

Header = dict[str, Any]


class MalformedMessageError(ValueError):
    """A message that is not what it should be, for any reason."""


@dataclass(frozen=True)
class _Place:
    """The position of a row: its array and first value."""

    array: str
    start: int


def pack(header: Header, arrays: Mapping[str, Array] | None = None) -> RecordDict:
    """The content of a message. Its salt prevents others from guessing and claiming its hash before it is sent."""
    content = RecordDict({HEADER_RECORD: ConfigRecord({"json": json.dumps(header), "salt": token_hex(16)})})
    if arrays:
        record = ArrayRecord()
        record.update(arrays)  # its constructor would copy each, and forget the hashes of its chunks
        content[ROWS_RECORD] = record
    return content


def header_of(content: RecordDict) -> Header:
    """The JSON header of a message."""
    record = content.config_records.get(HEADER_RECORD)
    header = read_json(record and record.get("json"))
    if isinstance(header, Refused):
        raise MalformedMessageError(header.why)
    return header


def to_array(rows: Sequence[Tensor], wire: str) -> Array:
    """Concatenate these rows into one flat array."""
    flat = torch.cat([row.detach().to("cpu", DTYPES[wire]) for row in rows])
    return Array(wire, (flat.numel(),), STYPE, salt(flat.view(torch.uint8).numpy().data))


def salt(values: memoryview) -> bytes:
    """The same bytes with a salt at the start of each of Flower's chunks.

    A SuperLink names a chunk by its hash. A site that knew an array before it is sent could announce that name first.
    """
    pieces = [values[start : start + PIECE_BYTES] for start in range(0, len(values), PIECE_BYTES)]
    return b"".join(part for piece in pieces for part in (token_bytes(SALT_BYTES), piece))


def unsalt(data: bytes) -> bytearray:
    """The bytes without their salts.

    >>> unsalt(salt(memoryview(b"abc")))
    bytearray(b'abc')
    """
    view = memoryview(data)
    size = SALT_BYTES + PIECE_BYTES
    return bytearray().join(view[start + SALT_BYTES : start + size] for start in range(0, len(view), size))


def to_rows(content: RecordDict) -> dict[str, Tensor]:
    """The flat arrays of a message, in float32."""
    if ROWS_RECORD not in content.array_records:
        return {}
    rows = {}
    for name, array in content.array_records[ROWS_RECORD].items():
        if array.stype != STYPE or array.dtype not in DTYPES:
            raise MalformedMessageError(
                f"array should be {STYPE} of {', '.join(DTYPES)}, found {array.stype} {array.dtype}"
            )
        dtype, data = DTYPES[array.dtype], unsalt(array.data)
        if array.shape != (len(data) // dtype.itemsize,) or len(data) % dtype.itemsize:
            raise MalformedMessageError(f"array of shape {array.shape}: expected as many values, got {len(data)} B")
        rows[name] = torch.frombuffer(data, dtype=dtype).float()
    return rows


def encode_orders(orders: Mapping[str, Order], wire: Wire, headers: Mapping[str, Header]) -> dict[str, RecordDict]:
    """Encode every client's order with what else is in its header.

    Rows that several clients get are packed once, in the same array for all of them.
    """
    receivers: dict[int, list[str]] = {}
    rows: dict[int, Tensor] = {}
    for client, order in orders.items():
        for addend in _addends(order):
            key = addend.row.data_ptr()
            rows[key] = addend.row
            receivers.setdefault(key, []).append(client)
    groups: dict[tuple[str, ...], list[int]] = {}
    for key, clients in receivers.items():
        groups.setdefault(tuple(dict.fromkeys(clients)), []).append(key)
    places: dict[int, _Place] = {}
    arrays: dict[str, dict[str, Array]] = {client: {} for client in orders}
    for number, (group, keys) in enumerate(groups.items()):
        name = OWN if len(group) == 1 else f"shared{number}"
        start = 0
        for key in keys:
            places[key] = _Place(name, start)
            start += rows[key].numel()
        array = to_array([rows[key] for key in keys], wire)
        for client in group:
            arrays[client][name] = array
    return {
        client: pack({**headers.get(client, {}), "order": _order(order, places)}, arrays[client])
        for client, order in orders.items()
    }


def decode_order(content: RecordDict, layouts: Mapping[Slot, Layout]) -> Order:
    """Decode the order in a message."""
    header, arrays = header_of(content)["order"], to_rows(content)

    def row(slot: Slot, place: Mapping[str, Any]) -> Tensor:
        return _cut(arrays, place["array"], place["start"], layouts[slot].numel)

    unknown = [slot for slot in map(Slot.parse, header["deliveries"]) if slot not in layouts]
    if unknown:
        raise MalformedMessageError(f"deliveries should be of {', '.join(map(str, layouts))}, found {unknown[0]}")
    deliveries = deliveries_from_data(header["deliveries"], row)
    flags = {key: bool(header[key]) for key in FLAGS}
    return Order(header["round"], deliveries, **flags, upload=header["upload"])


def encode_reply(reply: Reply, wire: Wire, keys: Sequence[str] = ()) -> RecordDict:
    """Encode a reply as a message's content, with public keys if a sum follows."""
    header = {**reply_as_data(reply), "slots": [str(slot) for slot in reply.rows]}
    header |= {"keys": list(keys)} if keys else {}
    return pack(header, {OWN: to_array(list(reply.rows.values()), wire)} if reply.rows else None)


def decode_reply(header: Header, rows: Tensor | None, profile: Profile) -> Reply | Refused:
    """Decode this client's reply; its round, names and numbers are not checked yet."""
    if header.get("client") != profile.client:
        return Refused(f"client should be {profile.client}, found {shown(header.get('client'))}")
    try:
        slots = [Slot.parse(slot) for slot in header["slots"]]
        pieces = torch.split(torch.empty(0) if rows is None else rows, [profile.layouts[slot].numel for slot in slots])
        if len(set(slots)) != len(slots):
            return Refused(f"slots should be listed once, found {shown(header['slots'])}")
        return Reply(
            client=profile.client,
            round=header["round"],
            rows=dict(zip(slots, pieces, strict=True)),
            agreement={Slot.parse(slot): tuple(values) for slot, values in header["agreement"].items()},
            losses=header["losses"],
            metrics=header["metrics"],
            effect=Effect(*header["effect"]) if header.get("effect") else None,
            seconds=header["seconds"],
            failed=plain(header["failed"]),
            declined=plain(header["declined"]),
        )
    except Exception as error:  # nothing in an answer may stop the server
        return Refused(f"reply cannot be read: {shown(error)}")


def encode_profile(profile: Profile) -> RecordDict:
    """Encode a profile as a message's content."""
    return pack(profile_as_data(profile))


def decode_profile(header: Header, expected: Profile, most: int | None = None) -> Profile | Refused:
    """Decode the profile in an answer, if it is the expected one.

    A site can choose its number of images, once: from 1 to `most`, unless the expected profile already has one.
    """
    classes = header.get("classes")
    if not isinstance(classes, dict) or not all(
        task in expected.tasks and isinstance(digest, str) and len(digest) <= NAME for task, digest in classes.items()
    ):
        return Refused(f"classes of {expected.client}: expected digests by task, got {shown(classes)}")
    if others := [task for task, digest in expected.classes.items() if classes.get(task) != digest]:
        return Refused(f"classes of {expected.client}, {others[0]}: expected the experiment's names, got others")
    for key, wanted in profile_as_data(expected).items():
        if key not in ("samples", "classes") and header.get(key) != wanted:
            if key == "layouts":
                return Refused(f"layouts of {expected.client} should be those of the experiment's model, found others")
            return Refused(f"{key} of {expected.client} should be {shown(wanted)}, found {shown(header.get(key))}")
    samples, most = header.get("samples"), most or MOST_IMAGES
    if type(samples) is not int or not 1 <= samples <= most:
        return Refused(f"samples of {expected.client}: expected 1 to {most} training images, got {shown(samples)}")
    if samples != (expected.samples or samples):
        before = f"{expected.samples} training images, as before in this run"
        return Refused(f"samples of {expected.client}: expected {before}, got {samples}")
    return replace(expected, samples=samples, classes=classes)


def decode_new_profile(header: Header) -> Profile | Refused:
    """Decode the profile of a client that is not known yet."""
    try:
        names = [header["client"], header["dataset"], *header["tasks"]]
        for name in names:
            if not isinstance(name, str) or len(name) > NAME or not PLAIN_NAME.fullmatch(name):
                return Refused(f"names should be at most {NAME} letters, digits, '-', '_' and '.', found {shown(name)}")
        tasks = tuple(header["tasks"])
        layouts = {Slot.parse(text): _layout(*described) for text, described in header["layouts"].items()}
        if not tasks or len(set(tasks)) < len(tasks) or not {slot.task for slot in layouts} <= {"", *tasks}:
            return Refused(f"tasks should be those of the decoders and heads, each once, found {shown(tasks)}")
        profile = Profile(header["client"], header["dataset"], tasks, 0, layouts)
    except Exception as error:  # nothing in an answer may stop the server
        return Refused(f"profile cannot be read: {shown(error)}")
    return decode_profile(header, profile)


def _layout(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Layout:
    """The layout of a row, if it can be one."""
    fits = 0 < len(names) == len(set(names)) == len(shapes) and len(names) <= MOST_TENSORS
    sizes = [size for shape in shapes for size in shape]
    if not fits or not all(isinstance(name, str) for name in names) or not all(type(size) is int for size in sizes):
        raise ValueError(f"should have 1 to {MOST_TENSORS} names with shapes")
    layout = Layout(tuple(names), tuple(map(tuple, shapes)))
    if any(size < 0 for size in sizes) or not 0 < layout.numel <= MOST_VALUES:
        raise ValueError(f"should have 1 to {MOST_VALUES} values")
    return layout


def profile_as_data(profile: Profile) -> Header:
    """Convert a profile to JSON data."""
    layouts = {
        str(slot): [list(layout.names), [list(shape) for shape in layout.shapes]]
        for slot, layout in profile.layouts.items()
    }
    return {
        "client": profile.client,
        "dataset": profile.dataset,
        "tasks": list(profile.tasks),
        "samples": profile.samples,
        "layouts": layouts,
        "backbone": profile.backbone,
        "classes": dict(profile.classes),
    }


def _addends(order: Order) -> list[Addend]:
    return [addend for delivery in order.deliveries.values() for addend in delivery.addends]


def _order(order: Order, places: Mapping[int, _Place]) -> Header:
    def where(row: Tensor) -> Header:
        place = places[row.data_ptr()]
        return {"array": place.array, "start": place.start}

    deliveries = deliveries_as_data(order.deliveries, where)
    flags = {key: getattr(order, key) for key in FLAGS}
    return {"round": order.round, "deliveries": deliveries, **flags, "upload": dict(order.upload)}


def _cut(arrays: Mapping[str, Tensor], name: str, start: int, size: int) -> Tensor:
    row = arrays[name][start : start + size] if name in arrays else torch.empty(0)
    if start < 0 or row.numel() != size:
        raise MalformedMessageError(f"array {name!r} should have {size} values from {start} on, found {row.numel()}")
    return row
