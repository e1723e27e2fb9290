"""State files: tensors in safetensors with a JSON header and a checksum, never half written."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b, sha256
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from fedhca2.messages import Order, Reply, reply_as_data, reply_from_data
from fedhca2.params import Slot
from fedhca2.whole_files import write_whole

FORMAT = "fedhca2 state 3"
HASHES: dict[str, Callable[[], Any]] = {FORMAT: sha256, "fedhca2 state 2": partial(blake2b, digest_size=16)}
STATE_FILE, REPLY_FILE = "state.safetensors", "reply.safetensors"  # of a client in the folder that it keeps


class RoundIsOverError(ValueError):
    """An order for a past round, whose reply the client no longer has."""


class StateFileError(ValueError):
    """A state file that cannot be used."""


@dataclass(frozen=True)
class ClientState:
    """Tensors by name, and JSON values: everything a client or the server needs to continue."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def save_state(path: Path, state: ClientState, *, sync: bool = True) -> str:
    """Write a state so that a crash leaves either the old file or the new one; returns its checksum.

    Without `sync` this holds for a crash of the process, but not of the system.
    """
    tensors, values = _on_cpu(state.tensors), json.dumps(state.values)
    checksum = _checksum(tensors, values, FORMAT)
    write_whole(path, save(tensors, {"format": FORMAT, "values": values, "checksum": checksum}), sync=sync)
    return checksum


def load_state(path: Path, checksum: str | None = None) -> ClientState:
    """Read a state; raises StateFileError if it is damaged, foreign, or has another checksum than expected."""
    try:
        data = path.read_bytes()
        tensors = load(data)
        header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")]).get("__metadata__") or {}
    except FileNotFoundError:
        raise StateFileError(f"{path}: expected a state of fedhca2, got no file") from None
    except (SafetensorError, ValueError, RuntimeError, KeyError) as error:
        raise StateFileError(f"{path}: expected a state of fedhca2, got a damaged or foreign file ({error})") from None
    format = header.get("format", "none")
    if format not in HASHES:
        raise StateFileError(f"{path}: expected format {FORMAT!r}, got {format!r}")
    actual = _checksum(tensors, header.get("values", ""), format)
    if actual != header.get("checksum"):
        raise StateFileError(f"{path}: is damaged: expected checksum {header.get('checksum')}, got {actual}")
    if checksum is not None and actual != checksum:
        raise StateFileError(f"{path}: belongs to another checkpoint: expected checksum {checksum}, got {actual}")
    return ClientState(tensors, json.loads(header["values"]))


def save_reply(path: Path, reply: Reply) -> None:
    """Write a reply, so that a repeated order gets the same one."""
    save_state(path, ClientState({str(slot): row for slot, row in reply.rows.items()}, reply_as_data(reply)))


def load_reply(path: Path) -> Reply:
    """Read what `save_reply` wrote."""
    state = load_state(path)
    return reply_from_data(state.values, {Slot.parse(slot): row for slot, row in state.tensors.items()})


def save_answer(folder: Path, reply: Reply, state: ClientState) -> None:
    """Save a client's reply and then its state after it, before the reply leaves."""
    save_reply(folder / REPLY_FILE, reply)
    save_state(folder / STATE_FILE, ClientState(state.tensors, {**state.values, "round": reply.round}))


def reply_again(folder: Path, order: Order, last: int) -> Reply | None:
    """The saved reply to an order of a client's `last` round; None for a new order.

    Raises RoundIsOverError for an older order.
    """
    if order.round < last:
        raise RoundIsOverError(f"round: expected {last} or later, got {order.round}")
    return load_reply(folder / REPLY_FILE) if order.round == last else None


def tensor_file(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """Tensors as a safetensors file, of any device and layout."""
    return save(_on_cpu(tensors), metadata)


def _on_cpu(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors as safetensors takes them: contiguous, on the CPU, and each with memory of its own."""
    pointers: set[int] = set()
    ready = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach().cpu().contiguous()
        ready[name] = tensor.clone() if tensor.data_ptr() in pointers else tensor
        pointers.add(tensor.data_ptr())
    return ready


def _checksum(tensors: Mapping[str, Tensor], values: str, format: str) -> str:
    """Hash everything at once, unless it is large: after each call, a thread waits for the interpreter again."""
    pieces: list[Any] = [values.encode()]
    for name, tensor in sorted(tensors.items()):
        content = tensor.reshape(-1).view(torch.uint8).numpy()
        pieces += [f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode(), content]
    if sum(len(piece) for piece in pieces) < 2**26:
        pieces = [b"".join(pieces)]
    digest = HASHES[format]()
    for piece in pieces:
        digest.update(piece)
    return str(digest.hexdigest())
