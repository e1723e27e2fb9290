"""Arrays in a run's folder: compressed files, read only if they are as small as they should be."""

import io
import zipfile
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedhca2.errors import UserError
from fedhca2.whole_files import PRIVATE, write_whole

Array = np.ndarray[Any, Any]
MOST_BYTES = 2**29  # of all arrays of a file: 4 MB can hold a thousand times as much


def write_arrays(path: Path, arrays: Mapping[str, Array], mode: int = PRIVATE) -> None:
    """Write arrays by name, whole or not at all."""
    packed = io.BytesIO()
    np.savez_compressed(packed, allow_pickle=False, **arrays)
    write_whole(path, packed.getvalue(), mode)


def read_arrays(path: Path, wanted: str) -> dict[str, Array]:
    """Read arrays by name; raises UserError if they are damaged, or too large to be what is wanted.

    What they will take is known before anything is decompressed.
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
        raise UserError(path, f"expected {wanted}, got {type(error).__name__}: {reason}") from None


def _declared(file: IO[bytes]) -> int:
    """The bytes that an array takes by its own header, which alone is read."""
    with file:
        version = np.lib.format.read_magic(file)
        v1 = version == (1, 0)
        read = np.lib.format.read_array_header_1_0 if v1 else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    return prod(shape) * int(dtype.itemsize)
