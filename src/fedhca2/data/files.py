"""Reading files of a data set, with errors that name the file."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy  # imports its parts when they are used
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from fedhca2.data.mat_sizes import require_bounded
from fedhca2.errors import UserError

T = TypeVar("T")
MOST_PIXELS = 40_000_000  # in an image or a label; photographs and satellite tiles have fewer
LONGEST_SIDE = 32_768  # a thin image of few pixels would be padded to many
FORMATS = ("BMP", "GIF", "JPEG", "JPEG2000", "PNG", "PPM", "TIFF", "WEBP")  # EPS would start Ghostscript


class FileError(UserError):
    """A fault in one file of a data set."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(path, message)
        self.path = path

    @property
    def fault(self) -> str:
        """What was expected, and what was found."""
        return self.faults[0].message


class MissingFileError(FileError):
    """A file is missing."""


class BrokenFileError(FileError):
    """A file does not hold what it should."""


def read_file(path: Path, form: str, read: Callable[[Path], T]) -> T:
    """Read a file with `read`; any failure becomes an error that names the file."""
    try:
        return read(path)
    except FileNotFoundError:
        raise MissingFileError(path, f"should be {form}, found no file") from None
    except (UserError, ImportError, MemoryError):
        raise
    except Exception as error:  # decoders raise anything for damaged files
        reason = " ".join(str(error).split())[:200]
        raise BrokenFileError(path, f"should be {form}, found {type(error).__name__}: {reason}") from error


@contextmanager
def open_image(path: Path) -> Iterator[Image.Image]:
    """Open an image and read only its header; raises an error if it is too large."""
    with Image.open(path, formats=FORMATS) as image:
        if image.height * image.width > MOST_PIXELS or max(image.size) > LONGEST_SIDE:
            wanted = f"should have at most {MOST_PIXELS} pixels, and {LONGEST_SIDE} on a side"
            raise BrokenFileError(path, f"{wanted}, found {image.height}×{image.width}")
        yield image


def file_in(folder: Path, name: str, *, within: Path | None) -> Path:
    """The path of a file in a folder that a data file names; raises ValueError for a name that leads elsewhere.

    No link may lead out of the folder `within`, which may itself be a link; None if links are followed.
    """
    path = folder / name
    if not name or "\0" in name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"expected the name of a file in {folder}, got {name!r:.200}")
    if within is not None and not path.resolve().is_relative_to(within.resolve()):
        raise ValueError(
            f"expected a file in {within}, got {name!r:.200}, a link out of it; `links: true` follows links"
        )
    return path


def to_rgb(path: Path, image: Image.Image) -> Image.Image:
    """Convert an image to three channels of 8 bits; 16-bit values are scaled."""
    if image.mode.startswith("I;16"):
        image = Image.fromarray(_scaled(np.asarray(image)))
    if image.mode in ("I", "F"):
        raise BrokenFileError(path, f"should have 8 or 16 bits per channel, found 32 (mode {image.mode})")
    return image.convert("RGB")


def _scaled(values: NDArray[np.uint16]) -> NDArray[np.uint8]:
    """Scale 0 … 65535 to 0 … 255."""
    scaled: NDArray[np.uint8] = ((values.astype(np.uint32) + 128) // 257).astype(np.uint8)
    return scaled


def read_colours(path: Path) -> Tensor:
    """Read an RGB image, uint8 [3, H, W]."""

    def read(path: Path) -> Tensor:
        with open_image(path) as image:
            return torch.from_numpy(np.array(to_rgb(path, image))).permute(2, 0, 1).contiguous()

    return read_file(path, "an RGB image", read)


def read_size(path: Path) -> tuple[int, int]:
    """Read the height and width of an image from its first bytes."""

    def read(path: Path) -> tuple[int, int]:
        with open_image(path) as image:
            return image.height, image.width

    return read_file(path, "an RGB image", read)


def read_values(path: Path) -> Tensor:
    """Read the raw values of a grey or palette PNG (a palette's colours are ignored), uint8 [1, H, W]."""
    values = _grey(path)
    if values.max() > 255:
        raise BrokenFileError(path, f"should hold values 0 … 255, found {values.max()}")
    return torch.from_numpy(values.astype(np.uint8))[None]


def read_shades(path: Path) -> Tensor:
    """Read the shades of a grey PNG, from 0 for black to 255 for white, uint8 [1, H, W]."""
    values = _grey(path)
    return torch.from_numpy(_scaled(values) if values.dtype.itemsize > 1 else values)[None]


def _grey(path: Path) -> NDArray[Any]:
    """Read the values of a grey or palette PNG of 8 or 16 bits [H, W]."""

    def read(path: Path) -> NDArray[Any]:
        with open_image(path) as image:
            if image.mode not in ("L", "P") and not image.mode.startswith("I;16"):
                raise BrokenFileError(path, f"should be a grey or palette PNG (mode L or P), found mode {image.mode}")
            return np.array(image)

    return read_file(path, "a grey or palette PNG", read)


def read_normals(path: Path) -> Tensor:
    """Read normals from an RGB PNG: 2v/255 − 1 in each channel, float32 [3, H, W]."""
    return 2 * read_colours(path).float() / 255 - 1


def read_mat(path: Path, variable: str) -> Any:
    """Read one variable of a MATLAB file (version 5, compressed or not)."""

    def read(path: Path) -> Any:
        try:
            require_bounded(path, variable)
        except ValueError as error:
            raise BrokenFileError(path, str(error)) from None
        return scipy.io.loadmat(path, variable_names=[variable])[variable]

    return read_file(path, f"a MATLAB file with {variable}", read)


def read_npy(path: Path) -> NDArray[Any]:
    """Read an array in numpy's format; no code in it is executed."""

    def read(path: Path) -> NDArray[Any]:
        array = np.load(path, mmap_mode="r", allow_pickle=False)  # mapped: a wrong size in the header costs no memory
        if not isinstance(array, np.ndarray) or array.size > MOST_PIXELS:
            shape = getattr(array, "shape", type(array).__name__)
            raise BrokenFileError(path, f"should be an array of at most {MOST_PIXELS} numbers, found {shape}")
        return np.array(array)

    return read_file(path, "a numpy array", read)


def read_json(path: Path) -> Any:
    """Read a JSON file with any extension."""
    return read_file(path, "JSON", lambda path: json.loads(path.read_text(encoding="utf-8")))


def class_codes(path: Path, values: Tensor, classes: int) -> Tensor:
    """Return the values if all are classes 0 … `classes` − 1, or 255 for unknown; otherwise raise an error."""
    strange = values[(values >= classes) & (values != 255)]
    if len(strange):
        raise BrokenFileError(
            path, f"should hold values 0 … {classes - 1} and 255, found {sorted(set(strange.tolist()))}"
        )
    return values
