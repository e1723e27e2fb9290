"""Reading files of a data set, with errors that name the file."""

import json
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedhca2.data.label_spaces import PART_CLASS, PERSON
from fedhca2.errors import UserError
from fedhca2.imports import one_line
from fedhca2.labels import IGNORE
from fedhca2.metrics.edges import boundaries

CONTEXT_CLASSES = 459  # of PASCAL-Context's label maps
MAX_PIXELS = 40_000_000  # in an image or a label; photographs and satellite tiles have fewer
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # EPS would start Ghostscript


class FileError(UserError):
    """A fault in one file of a data set."""

    def __init__(self, path: Path | str, message: str) -> None:
        super().__init__(path, message)
        self.path = Path(path)


class MissingFileError(FileError):
    """A file is missing."""


class BrokenFileError(FileError):
    """A file does not hold what it should."""


@contextmanager
def reading(path: Path | str, expected: str) -> Iterator[None]:
    """Turn whatever fails in this block into an error that names the file: decoders and users' code raise anything."""
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, FileNotFoundError) and str(error.filename) == str(path):
            raise MissingFileError(path, f"expected {expected}, got no file") from None
        raise BrokenFileError(path, f"expected {expected}, got {one_line(error)}") from error


def package_folder(name: str, install: str) -> Path:
    """The folder of an installed package, which is not imported; raises ImportError that says how to install it."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError:  # nor is the package that it is part of
        spec = None
    if spec is None or not spec.submodule_search_locations:
        raise ImportError(f"{name} is not installed; run: {install}")
    return Path(next(iter(spec.submodule_search_locations)))


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image and read only its header; raises an error if it is too large."""
    max_side = 32_768  # even a thin image would be padded to many pixels
    with Image.open(path, formats=FORMATS) as image:
        if image.height * image.width > MAX_PIXELS or max(image.size) > max_side:
            expected = f"expected at most {MAX_PIXELS} pixels, and {max_side} on a side"
            raise BrokenFileError(path, f"{expected}, got {image.height}×{image.width}")
        yield image


def file_in(folder: Path, name: str, *, within: Path | None, where: str) -> Path:
    """The path of a file in a folder that a data file names; raises an error for a name that leads elsewhere.

    :param within: the folder that no link may lead out of, which may itself be a link; None if links are followed.
    :param where: the place of the name, for the error.
    """
    path = folder / name
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise BrokenFileError(where, f"expected the name of a file in {folder}, got {name!r:.200}")
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        expected = f"expected a file in {within}, or `links: true` to follow links"
        raise BrokenFileError(where, f"{expected}, got {name!r:.200}, a link out of it")
    return path


def to_rgb(path: Path, image: Image.Image) -> Image.Image:
    """Convert an image to three channels of 8 bits; 16-bit values are scaled."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray(_scale_to_bytes(np.asarray(image)))
    if image.mode in ("I", "F"):
        raise BrokenFileError(path, f"expected 8 or 16 bits per channel, got 32 (mode {image.mode})")
    return image.convert("RGB")


def _scale_to_bytes(values: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Scale 0 … 65535 to 0 … 255."""
    scaled: NDArray[np.uint8] = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return scaled


def read_colours(path: Path) -> Tensor:
    """Read an RGB image, uint8 [3, H, W]."""
    with reading(path, "an RGB image"), open_image(path) as image:
        return torch.from_numpy(np.array(to_rgb(path, image))).permute(2, 0, 1).contiguous()


def read_size(path: Path) -> tuple[int, int]:
    """Read the height and width of an image from its first bytes."""
    with reading(path, "an RGB image"), open_image(path) as image:
        return image.height, image.width


def read_values(path: Path) -> Tensor:
    """Read the raw values of a grey or palette PNG (a palette's colours are ignored), uint8 [1, H, W]."""
    values = _read_grey(path)
    if values.max() > 255:
        raise BrokenFileError(path, f"expected values 0 … 255, got {values.max()}")
    return torch.from_numpy(values.astype(np.uint8))[None]


def read_shades(path: Path) -> Tensor:
    """Read the shades of a grey PNG, from 0 for black to 255 for white, uint8 [1, H, W]."""
    values = _read_grey(path)
    return torch.from_numpy(_scale_to_bytes(values) if values.dtype.itemsize > 1 else values)[None]


def _read_grey(path: Path) -> NDArray[Any]:
    """Read the values of a grey or palette PNG of 8 or 16 bits [H, W]."""
    with reading(path, "a grey or palette PNG"), open_image(path) as image:
        if image.mode not in ("L", "P") and not image.mode.startswith("I;16"):
            raise BrokenFileError(path, f"expected a grey or palette PNG (mode L or P), got mode {image.mode}")
        return np.array(image)


def read_normals(path: Path) -> Tensor:
    """Read normals from an RGB PNG, float32 [3, H, W]."""
    return decode_normals(read_colours(path))


def decode_normals(code: Tensor) -> Tensor:
    """Decode normals from an 8-bit image: $n = 2v/255 - 1$.

    >>> decode_normals(torch.tensor([0, 153, 255], dtype=torch.uint8))
    tensor([-1.0000,  0.2000,  1.0000])
    """
    return 2 * code.float() / 255 - 1


def read_npy(path: Path) -> NDArray[Any]:
    """Read an array in numpy's format; no code in it is executed."""
    with reading(path, "a numpy array"):
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a wrong size in the header costs no memory
        if not isinstance(array, np.ndarray) or array.size > MAX_PIXELS:
            shape = getattr(array, "shape", type(array).__name__)
            raise BrokenFileError(path, f"expected an array of at most {MAX_PIXELS} numbers, got {shape}")
        return np.array(array)


def read_json(path: Path) -> Any:
    """Read a JSON file with any extension."""
    with reading(path, "JSON"):
        return json.loads(path.read_text(encoding="utf-8"))


def class_codes(path: Path, values: Tensor, classes: int) -> Tensor:
    """Return the values if all are classes 0 … `classes` − 1, or 255 for unknown; otherwise raise an error."""
    strange = values[(values >= classes) & (values != 255)]
    if len(strange):
        expected = f"expected values 0 … {classes - 1} and 255"
        raise BrokenFileError(path, f"{expected}, got {sorted(set(strange.tolist()))}")
    return values


def read_mat(path: Path, variable: str) -> Any:
    """Read one variable of a MATLAB file (version 5, compressed or not)."""
    with reading(path, f"a MATLAB file with {variable}"):
        _MatBudget().check(path, variable)
        return scipy.io.loadmat(path, variable_names=[variable])[variable]


def read_label_map(path: Path) -> NDArray[np.int32]:
    """Read the classes of PASCAL-Context, 1 … 459, int32 [H, W]."""
    stored = read_mat(path, "LabelMap")
    if stored.ndim != 2 or stored.dtype.kind not in "biuf":
        raise BrokenFileError(path, f"LabelMap: expected a map of numbers, got {stored.dtype} {stored.shape}")
    if not np.isin(stored, np.arange(CONTEXT_CLASSES + 1)).all():
        actual = f"{stored.min()} to {stored.max()}"
        raise BrokenFileError(path, f"LabelMap: expected whole numbers from 0 to {CONTEXT_CLASSES}, got {actual}")
    label_map: NDArray[np.int32] = stored.astype(np.int32)
    return label_map


def read_parts(path: Path, size: tuple[int, int]) -> Tensor:
    """Paint the parts of all people in an annotation of PASCAL-Part, in the file's order; uint8 [1, H, W].

    If no pixel belongs to a part, all pixels are unknown, 255.
    """
    painted = np.zeros(size, np.uint8)
    # Fields by position. anno: image name, objects; an object: name, class, mask, parts; a part: name, mask.
    people = [item for item in read_mat(path, "anno")[0][0][1].flat if item[1].item() == PERSON]
    parts = [(str(part[0].item()), part[1]) for person in people for part in person[3].flat]
    for name, mask in parts:
        if name not in PART_CLASS:
            expected = f"a person's part: expected one of {', '.join(PART_CLASS)}"
            raise BrokenFileError(path, f"{expected}, got {name!r:.80}")
        if mask.shape != size:
            raise BrokenFileError(path, f"{name}: expected {size[0]}×{size[1]} like its image, got {mask.shape}")
        painted[mask.astype(bool)] = PART_CLASS[name]
    if not painted.any():
        painted.fill(IGNORE)
    return torch.from_numpy(painted)[None]


def read_boundaries(path: Path) -> Tensor:
    """Read an annotation of NYUD-v2's edges, float32 [1, H, W]: the boundaries of its map "Boundaries"."""
    boundary_map = read_mat(path, "groundTruth")[0, 0]["Boundaries"][0, 0]
    return boundaries(torch.from_numpy(boundary_map.astype(np.int32))).float()[None]


def read_depth(path: Path) -> Tensor:
    """Read depth in metres from an array, float32 [1, H, W]."""
    depth = read_npy(path)
    if depth.ndim != 2 or depth.dtype.kind != "f":
        raise BrokenFileError(path, f"expected a map of floats, got {depth.dtype} {depth.shape}")
    if not np.isfinite(depth).all() or depth.min() < 0:
        raise BrokenFileError(path, f"expected metres of at least 0, got {depth.min()} to {depth.max()}")
    return torch.from_numpy(depth.astype(np.float32))[None]


class _MatBudget:
    """The memory that a MATLAB file may still ask for: scipy believes the sizes in it, and would take all of that.

    A file of version 5 is a header and elements: a type, a number of bytes, and that many bytes. An array (type 14) has
    elements of its own (flags, dimensions, name, then values, cells or fields); type 15 is a compressed element.
    """

    max_bytes = 160_000_000  # of all values: 4 for each pixel of the largest image
    max_items = 100_000  # cells and fields

    def __init__(self) -> None:
        self.bytes, self.items, self.order = self.max_bytes, self.max_items, "<"
        # Bytes of a value in memory, by the class of an array.
        self.value_bytes = {4: 4, 6: 8, 7: 4, 8: 1, 9: 1, 10: 2, 11: 2, 12: 4, 13: 4, 14: 8, 15: 8}

    def check(self, path: Path, variable: str) -> None:
        """Raise ValueError if reading a variable would take too much memory; takes no more itself."""
        if path.stat().st_size > self.max_bytes:
            raise ValueError(f"{path.stat().st_size} bytes, more than {self.max_bytes:g}")
        content = path.read_bytes()
        if (order := {b"IM": "<", b"MI": ">"}.get(content[126:128])) is None:
            raise ValueError("another format than version 5 (save … -v7)")
        self.order, rest = order, memoryview(content)[128:]
        while len(rest) >= 8:
            kind, payload, rest = self.element(rest, padded=False)
            if kind == 15:
                unpacked = zlib.decompressobj().decompress(payload, self.max_bytes + 1)
                if len(unpacked) > self.max_bytes:
                    raise ValueError(f"more than {self.max_bytes:g} bytes when decompressed")
                kind, payload, _ = self.element(memoryview(unpacked))
            if kind == 14:
                self.spend_array(payload, variable)

    def element(self, data: memoryview, *, padded: bool = True) -> tuple[int, memoryview, memoryview]:
        """The type and the bytes of the first element, and what follows it."""
        first, count = struct.unpack_from(f"{self.order}II", data)
        if first >> 16:  # up to 4 bytes, within the first 8
            return first & 0xFFFF, data[4 : 4 + (first >> 16)], data[8:]
        if count > len(data) - 8:
            raise ValueError(f"the end of the file after {len(data) - 8} of {count} bytes")
        return first, data[8 : 8 + count], data[8 + count + (-count % 8 if padded else 0) :]

    def spend_array(self, data: memoryview, variable: str | None = None) -> None:
        """Take what an array asks for; raises ValueError if that is too much, or more than the file has.

        An array of another name than this variable's is not read, and costs nothing.
        """
        if not data:  # an empty cell
            return
        (_, flags, rest), numbers = self.element(data), f"{self.order}%di"
        (flag,) = struct.unpack_from(f"{self.order}I", flags)
        _, dimensions, rest = self.element(rest)
        shape = struct.unpack_from(numbers % (len(dimensions) // 4), dimensions)
        _, name, rest = self.element(rest)
        if variable is not None and bytes(name) != variable.encode():
            return
        kind, count = flag & 0xFF, prod(shape)
        if min(shape, default=0) < 0 or (kind not in self.value_bytes and kind not in (1, 2)):
            raise ValueError(f"an array of class {kind} and shape {shape}")
        if kind in self.value_bytes:
            self.element(rest)
            self.bytes -= count * self.value_bytes[kind] * (2 if flag & 0x800 else 1)  # the flag: complex numbers
            count = 0
        elif kind == 2:  # a structure: its fields' names, all of one length
            _, length, rest = self.element(rest)
            _, names, rest = self.element(rest)
            count *= len(names) // max(1, struct.unpack_from(numbers % 1, length)[0])
        self.items -= count
        if self.bytes < 0 or self.items < 0:
            raise ValueError(f"arrays of more than {self.max_bytes:g} bytes, or {self.max_items} cells and fields")
        for _ in range(count):
            _, cell, rest = self.element(rest)
            self.spend_array(cell)
