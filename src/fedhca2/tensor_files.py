"""Tensors as safetensors files, written with few calls: the library looks at each for longer than at its bytes."""

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

import torch
from safetensors import deserialize
from safetensors.torch import _TYPES
from torch import Tensor

from fedhca2.packing import joined

TYPES: Mapping[str, Any] = {name: dtype for name, dtype in _TYPES.items() if dtype}  # that this torch has
NAMES = {dtype: name for name, dtype in TYPES.items()}
Buffer = memoryview | bytearray
Content = tuple[torch.dtype, tuple[int, ...], Buffer]  # the type, shape and bytes of a tensor


def contents(tensors: Mapping[str, Tensor]) -> dict[str, Content]:
    """Tensors as bytes, of each type together; those with the largest values first, so that all are aligned."""
    types = sorted({tensor.dtype for tensor in tensors.values()}, key=lambda dtype: (-dtype.itemsize, str(dtype)))
    held: dict[str, Content] = {}
    for dtype in types:
        own = {name: tensor for name, tensor in tensors.items() if tensor.dtype == dtype}
        data = memoryview(joined(list(own.values())).cpu().view(torch.uint8).numpy().data)
        ends = list(accumulate(tensor.nbytes for tensor in own.values()))
        for (name, tensor), start, end in zip(own.items(), [0, *ends], ends, strict=False):
            held[name] = dtype, tuple(tensor.shape), data[start:end]
    return held


def as_file(held: Mapping[str, Content], metadata: Mapping[str, str] | None = None) -> bytes:
    """The file of these contents."""
    ends = list(accumulate(len(data) for _, _, data in held.values()))
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    for (name, (dtype, shape, _)), start, end in zip(held.items(), [0, *ends], ends, strict=False):
        header[name] = {"dtype": NAMES[dtype], "shape": shape, "data_offsets": [start, end]}
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    return b"".join([len(words).to_bytes(8, "little"), words, *(data for _, _, data in held.values())])


def from_file(data: bytes) -> dict[str, Content]:
    """The contents of a file; raises SafetensorError or KeyError if they cannot be read."""
    held = dict(deserialize(data))  # type: ignore[no-untyped-call]
    return {name: (TYPES[each["dtype"]], tuple(each["shape"]), each["data"]) for name, each in held.items()}


def as_tensor(dtype: torch.dtype, shape: tuple[int, ...], data: Buffer) -> Tensor:
    """The tensor of these contents, which keeps their memory."""
    return torch.frombuffer(data, dtype=dtype).view(shape) if len(data) else torch.empty(shape, dtype=dtype)
