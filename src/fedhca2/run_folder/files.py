"""JSON and arrays in a run's folder, written so that every program can read them, and read within bounds."""

import io
import json
import zipfile
from collections.abc import Mapping
from math import isfinite, prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedhca2.errors import UserError
from fedhca2.whole_files import PRIVATE, write_whole

Array = np.ndarray[Any, Any]
MOST_BYTES = 2**29  # of all arrays of a file: 4 MB can hold a thousand times as much


def to_json(values: Any, **options: Any) -> str:
    """Convert plain data to JSON, with null for NaN and infinities, which the standard does not allow.

    >>> to_json({"miou": float("nan"), "rmse": [0.5, float("inf")]})
    '{"miou": null, "rmse": [0.5, null]}'
    """
    return json.dumps(_finite(values), allow_nan=False, **options)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def read_json(path: Path) -> Any:
    """Read plain data from a file; raises UserError if it is damaged, and OSError if it does not exist."""
    try:
        return json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise UserError(path, f"expected JSON, got {error}") from None


def mapping(where: object, values: Any) -> dict[str, Any]:
    """Check that values are a mapping, or raise a UserError that says where."""
    if not isinstance(values, dict):
        raise UserError(str(where), f"expected keys and values, got {values!r:.40}")
    return values


def write_arrays(path: Path, arrays: Mapping[str, Array], mode: int = PRIVATE) -> None:
    """Write arrays by name, whole or not at all."""
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    write_whole(path, packed.getvalue(), mode)


def read_arrays(path: Path, expected: str) -> dict[str, Array]:
    """Read arrays by name; raises UserError if they are damaged, or too large to be what is expected.

    The size is checked before anything is decompressed.
    """
    try:
        with zipfile.ZipFile(path) as file:
            takes = sum(max(entry.file_size, _declared(file.open(entry))) for entry in file.infolist())
        if takes > MOST_BYTES:
            raise ValueError(f"{takes:,} bytes of arrays, more than {MOST_BYTES:,}")
        with np.load(path, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except Exception as error:  # readers raise anything for damaged archives
        reason = " ".join(str(error).split())[:200]
        raise UserError(path, f"expected {expected}, got {type(error).__name__}: {reason}") from None


def _declared(file: IO[bytes]) -> int:
    """The bytes that an array takes by its own header, which alone is read."""
    with file:
        version = np.lib.format.read_magic(file)
        v1 = version == (1, 0)
        read = np.lib.format.read_array_header_1_0 if v1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return prod(shape) * int(dtype.itemsize)
