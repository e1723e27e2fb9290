"""Orders, replies and profiles as Flower records: a JSON header, and flat arrays of rows.

A header gives the position of each row. A row that several clients get is in a separate array, which is the same object
in each of their messages, so it is hashed and pushed once.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from itertools import accumulate
from secrets import token_bytes, token_hex
from typing import Any, Literal

import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from flwr.common.constant import FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE
from torch import Tensor

from fedhca2 import messages
from fedhca2.experiment.clients import NAME as PLAIN_NAME
from fedhca2.federation.gate import MAX_NAME, MAX_SCORES, SCORE_NAME, UnusableError, plain, read_json, shown
from fedhca2.messages import Order, Profile, Reply
from fedhca2.params import Layout, Slot

Wire = Literal["float32", "bfloat16"]
MASKED = "int32"  # wire format of masked rows
DTYPES: dict[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16, MASKED: torch.int32}
STYPE = "fedhca2.salted_rows"  # little-endian values, concatenated, in chunks that begin with a salt
SALT_BYTES = 16
PIECE_BYTES = FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE - SALT_BYTES  # of values in one of Flower's chunks
HEADER_RECORD, ROWS_RECORD, OWN = "header", "rows", "own"
# Keys of a header: the stage of secure aggregation, and why a site cannot do what it was asked.
STAGE, CANNOT = "stage", "cannot"

Header = dict[str, Any]


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
    return read_json(content.config_records.get(HEADER_RECORD, ConfigRecord()).get("json"))


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
            expected = f"{STYPE} of {', '.join(DTYPES)}"
            raise UnusableError(f"array: expected {expected}, got {array.stype} {array.dtype}")
        dtype, data = DTYPES[array.dtype], unsalt(array.data)
        if array.shape != (len(data) // dtype.itemsize,) or len(data) % dtype.itemsize:
            raise UnusableError(f"array of shape {array.shape}: expected as many values, got {len(data)} B")
        rows[name] = torch.frombuffer(data, dtype=dtype).float()
    return rows


def encode_orders(orders: Mapping[str, Order], wire: Wire, headers: Mapping[str, Header]) -> dict[str, RecordDict]:
    """Encode every client's order with what else is in its header.

    Rows that several clients get are packed once, in the same array for all of them.
    """
    rows: dict[int, Tensor] = {}
    receivers: dict[int, dict[str, None]] = {}
    for client, order in orders.items():
        for row in (addend.row for delivery in order.deliveries.values() for addend in delivery.addends):
            rows[row.data_ptr()] = row
            receivers.setdefault(row.data_ptr(), {})[client] = None
    groups: dict[tuple[str, ...], list[int]] = {}
    for key, clients in receivers.items():
        groups.setdefault(tuple(clients), []).append(key)
    positions: dict[int, Header] = {}
    arrays: dict[str, dict[str, Array]] = {client: {} for client in orders}
    for number, (group, keys) in enumerate(groups.items()):
        name = OWN if len(group) == 1 else f"shared{number}"
        starts = accumulate((rows[key].numel() for key in keys), initial=0)
        positions |= {key: {"array": name, "start": start} for key, start in zip(keys, starts, strict=False)}
        array = to_array([rows[key] for key in keys], wire)
        for client in group:
            arrays[client][name] = array
    contents = {}
    for client, order in orders.items():
        deliveries = messages.deliveries_as_data(order.deliveries, lambda row: positions[row.data_ptr()])
        data = {**vars(order), "deliveries": deliveries, "upload": dict(order.upload)}
        contents[client] = pack({**headers.get(client, {}), "order": data}, arrays[client])
    return contents


def decode_order(content: RecordDict, layouts: Mapping[Slot, Layout]) -> Order:
    """Decode the order in a message."""
    header, arrays = header_of(content)["order"], to_rows(content)

    def row(slot: Slot, position: Mapping[str, Any]) -> Tensor:
        name, start, size = position["array"], position["start"], layouts[slot].numel
        values = arrays[name][start : start + size] if name in arrays else torch.empty(0)
        if start < 0 or values.numel() != size:
            raise UnusableError(f"array {name!r}: expected {size} values from {start} on, got {values.numel()}")
        return values

    unknown = [slot for slot in map(Slot.parse, header["deliveries"]) if slot not in layouts]
    if unknown:
        raise UnusableError(f"deliveries: expected {', '.join(map(str, layouts))}, got {unknown[0]}")
    flags = {each.name: bool(header[each.name]) for each in fields(Order) if each.type is bool}
    deliveries = messages.deliveries_from_data(header["deliveries"], row)
    return Order(header["round"], deliveries, upload=header["upload"], **flags)


def encode_reply(reply: Reply, wire: Wire, **header: Any) -> RecordDict:
    """Encode a reply as a message's content, with what else is in its header."""
    header |= {**messages.reply_as_data(reply), "slots": [str(slot) for slot in reply.rows]}
    return pack(header, {OWN: to_array(list(reply.rows.values()), wire)} if reply.rows else None)


def decode_reply(header: Header, rows: Tensor | None, profile: Profile) -> Reply:
    """Decode this client's reply; its round, names and numbers are not checked yet."""
    if header.get("client") != profile.client:
        raise UnusableError(f"client: expected {profile.client}, got {shown(header.get('client'))}")
    slots = [Slot.parse(slot) for slot in header["slots"]]
    pieces = torch.split(torch.empty(0) if rows is None else rows, [profile.layouts[slot].numel for slot in slots])
    if len(set(slots)) != len(slots):
        raise UnusableError(f"slots: expected each once, got {shown(header['slots'])}")
    reply = messages.reply_from_data(header, dict(zip(slots, pieces, strict=True)))
    return replace(reply, failed=plain(reply.failed), declined=plain(reply.declined))


def decode_scores(header: Header, rows: Tensor | None, profile: Profile) -> dict[str, float]:
    """Decode the scores of a user's own client, as 'client/score'."""
    scores, most = header["scores"], MAX_SCORES * len(profile.tasks)
    names = [name for name, value in scores.items() if SCORE_NAME.fullmatch(name) and isinstance(value, float)]
    if len(names) != len(scores) or len(names) > most:
        raise UnusableError(f"scores: expected at most {most} numbers with short names, got others")
    return {f"{profile.client}/{name}": scores[name] for name in names}


def profile_as_data(profile: Profile) -> Header:
    """Convert a profile to JSON data, as it arrives."""
    layouts = {str(slot): (layout.names, layout.shapes) for slot, layout in profile.layouts.items()}
    data: Header = json.loads(json.dumps({**vars(profile), "layouts": layouts}))
    return data


def decode_profile(header: Header, expected: Profile, most: int | None = None) -> Profile:
    """Decode the profile in an answer, if it is the expected one.

    A site can choose its number of images, once: from 1 to `most`, unless the expected profile already has one.
    """
    classes, client = header.get("classes"), expected.client
    if not isinstance(classes, dict) or not all(
        task in expected.tasks and isinstance(digest, str) and len(digest) <= MAX_NAME
        for task, digest in classes.items()
    ):
        raise UnusableError(f"classes of {client}: expected digests by task, got {shown(classes)}")
    if others := [task for task, digest in expected.classes.items() if classes.get(task) != digest]:
        raise UnusableError(f"classes of {client}, {others[0]}: expected the experiment's names, got others")
    for key, value in profile_as_data(expected).items():
        if key not in ("samples", "classes") and header.get(key) != value:
            if key == "layouts":
                raise UnusableError(f"layouts of {client}: expected those of the experiment's model, got others")
            raise UnusableError(f"{key} of {client}: expected {shown(value)}, got {shown(header.get(key))}")
    samples, most = header.get("samples"), most or 10**9
    if type(samples) is not int or not 1 <= samples <= most:
        raise UnusableError(f"samples of {client}: expected 1 to {most} training images, got {shown(samples)}")
    if samples != (expected.samples or samples):
        before = f"{expected.samples} training images, as before in this run"
        raise UnusableError(f"samples of {client}: expected {before}, got {samples}")
    return replace(expected, samples=samples, classes=classes)


def decode_new_profile(header: Header) -> Profile:
    """Decode the profile of a client that introduces itself."""
    for name in (header["client"], header["dataset"], *header["tasks"]):
        if not isinstance(name, str) or len(name) > MAX_NAME or not PLAIN_NAME.fullmatch(name):
            allowed = f"at most {MAX_NAME} letters, digits, '-', '_' and '.'"
            raise UnusableError(f"names: expected {allowed}, got {shown(name)}")
    tasks = tuple(header["tasks"])
    layouts = {Slot.parse(text): _layout(*described) for text, described in header["layouts"].items()}
    if not tasks or len(set(tasks)) < len(tasks) or not {slot.task for slot in layouts} <= {"", *tasks}:
        raise UnusableError(f"tasks: expected those of the decoders and heads, each once, got {shown(tasks)}")
    return decode_profile(header, Profile(header["client"], header["dataset"], tasks, 0, layouts))


def _layout(names: Sequence[str], shapes: Sequence[Sequence[int]]) -> Layout:
    """The layout of a row of a client that describes itself, if it can be one."""
    max_tensors, max_values = 5_000, 2**36
    fits = 0 < len(names) == len(set(names)) == len(shapes) and len(names) <= max_tensors
    sizes = [size for shape in shapes for size in shape]
    if not fits or not all(isinstance(name, str) for name in names) or not all(type(size) is int for size in sizes):
        raise ValueError(f"expected 1 to {max_tensors} names with shapes")
    layout = Layout(tuple(names), tuple(map(tuple, shapes)))
    if any(size < 0 for size in sizes) or not 0 < layout.numel <= max_values:
        raise ValueError(f"expected 1 to {max_values} values")
    return layout
