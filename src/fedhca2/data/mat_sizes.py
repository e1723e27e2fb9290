"""What a MATLAB file says about its sizes, read before a reader believes it.

A file of version 5 is a header and elements: a type, a number of bytes, and that many bytes. An array has elements of
its own (flags, dimensions, name, then values, cells or fields); any element may be compressed.
"""

import struct
import zlib
from math import prod
from pathlib import Path

HEADER, TAG = 128, 8
ARRAY, COMPRESSED = 14, 15
CELL, STRUCT, CHAR = 1, 2, 4
BYTES = {CHAR: 4, 6: 8, 7: 4, 8: 1, 9: 1, 10: 2, 11: 2, 12: 4, 13: 4, 14: 8, 15: 8}  # of a value in memory, by class
COMPLEX = 0x800
MOST_BYTES = 160_000_000  # of all values: 4 for each pixel of the largest image
MOST_ITEMS = 100_000  # cells and fields


def require_bounded(path: Path, variable: str) -> None:
    """Raise ValueError if reading a variable of a MATLAB file would take too much memory; takes no more itself."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES:g} bytes, got {path.stat().st_size}")
    content = path.read_bytes()
    order = {b"IM": "<", b"MI": ">"}.get(content[HEADER - 2 : HEADER])
    if order is None:
        raise ValueError("expected a MATLAB file of version 5 (save … -v7), got another format")
    budget, rest = _Budget(order), memoryview(content)[HEADER:]
    while len(rest) >= TAG:
        kind, payload, rest = budget.element(rest, padded=False)
        if kind == COMPRESSED:
            kind, payload, _ = budget.element(_decompressed(payload))
        if kind == ARRAY:
            budget.spend_array(payload, variable)


def _decompressed(payload: memoryview) -> memoryview:
    content = zlib.decompressobj().decompress(payload, MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"expected at most {MOST_BYTES:g} bytes when decompressed, got more")
    return memoryview(content)


class _Budget:
    """The bytes and items that a file may still ask for; its numbers have the byte order of a `struct` format."""

    def __init__(self, order: str) -> None:
        self.order, self.bytes, self.items = order, MOST_BYTES, MOST_ITEMS

    def element(self, data: memoryview, *, padded: bool = True) -> tuple[int, memoryview, memoryview]:
        """The type and the bytes of the first element, and what follows it."""
        first, count = struct.unpack_from(f"{self.order}II", data)
        if first >> 16:  # up to 4 bytes, within the tag
            return first & 0xFFFF, data[4 : 4 + (first >> 16)], data[TAG:]
        if count > len(data) - TAG:
            raise ValueError(f"expected {count} bytes, got the end of the file after {len(data) - TAG}")
        return first, data[TAG : TAG + count], data[TAG + count + (-count % TAG if padded else 0) :]

    def spend_array(self, data: memoryview, wanted: str | None = None) -> None:
        """Take what an array asks for; raises ValueError if that is too much, or more than the file has.

        An array of another name than the `wanted` one is not read, and costs nothing.
        """
        if not data:  # an empty cell
            return
        (_, flags, rest), numbers = self.element(data), f"{self.order}%di"
        (flag,) = struct.unpack_from(f"{self.order}I", flags)
        _, dimensions, rest = self.element(rest)
        shape = struct.unpack_from(numbers % (len(dimensions) // 4), dimensions)
        _, name, rest = self.element(rest)
        if wanted is not None and bytes(name) != wanted.encode():
            return
        kind, count = flag & 0xFF, prod(shape)
        if min(shape, default=0) < 0 or (kind not in BYTES and kind not in (CELL, STRUCT)):
            raise ValueError(f"expected an array of values, cells or fields, got class {kind} of shape {shape}")
        if kind in BYTES:
            self.element(rest)
            self._spend(count * BYTES[kind] * (2 if flag & COMPLEX else 1), 0)
            return
        if kind == STRUCT:
            _, length, rest = self.element(rest)
            _, names, rest = self.element(rest)
            count *= len(names) // max(1, struct.unpack_from(numbers % 1, length)[0])
        self._spend(0, count)
        for _ in range(count):
            _, cell, rest = self.element(rest)
            self.spend_array(cell)

    def _spend(self, bytes: int, items: int) -> None:
        self.bytes, self.items = self.bytes - bytes, self.items - items
        if self.bytes < 0:
            raise ValueError(f"expected arrays of at most {MOST_BYTES:g} bytes, got more")
        if self.items < 0:
            raise ValueError(f"expected at most {MOST_ITEMS} cells and fields, got more")
