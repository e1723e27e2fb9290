"""Files of a data set, read with errors that name the file."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.io import loadmat
from torch import Tensor

T = TypeVar("T")


class FileError(ValueError):
    """Something is wrong with one file of a data set."""

    def __init__(self, path: Path, fault: str) -> None:
        super().__init__(f"{path}: {fault}")
        self.path = path
        self.fault = fault


class MissingFileError(FileError):
    """A file that should be there is not."""


class BrokenFileError(FileError):
    """A file does not hold what it should."""


def read_file(path: Path, form: str, read: Callable[[Path], T]) -> T:
    """What `read` makes of a file; whatever goes wrong becomes an error that names it."""
    try:
        return read(path)
    except FileNotFoundError:
        raise MissingFileError(path, f"should be {form}, found no file") from None
    except (FileError, ImportError, MemoryError):
        raise
    except Exception as error:  # decoders of damaged files raise anything
        raise BrokenFileError(path, f"should be {form}, found {type(error).__name__}: {error}") from error


def read_colours(path: Path) -> Tensor:
    """An RGB image, uint8 [3, H, W]."""

    def read(path: Path) -> Tensor:
        with Image.open(path) as image:
            return torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1).contiguous()

    return read_file(path, "an RGB image", read)


def read_size(path: Path) -> tuple[int, int]:
    """Height and width of an image, from its first bytes."""

    def read(path: Path) -> tuple[int, int]:
        with Image.open(path) as image:
            return image.height, image.width

    return read_file(path, "an RGB image", read)


def read_values(path: Path) -> Tensor:
    """The numbers in a grey or palette PNG as they are (a palette's colours mean nothing), uint8 [1, H, W]."""

    def read(path: Path) -> Tensor:
        with Image.open(path) as image:
            if image.mode not in ("L", "P"):
                raise BrokenFileError(path, f"should be a grey or palette PNG (mode L or P), found mode {image.mode}")
            return torch.from_numpy(np.array(image))[None]

    return read_file(path, "a grey or palette PNG", read)


def read_normals(path: Path) -> Tensor:
    """Normals in an RGB PNG: 2v/255 − 1 in each channel, float32 [3, H, W]."""
    return 2 * read_colours(path).float() / 255 - 1


def read_mat(path: Path, variable: str) -> Any:
    """One variable of a MATLAB file (version 5, compressed or not)."""
    return read_file(
        path, f"a MATLAB file with {variable}", lambda path: loadmat(path, variable_names=[variable])[variable]
    )


def read_npy(path: Path) -> NDArray[Any]:
    """An array in numpy's format; nothing in it is executed."""

    def read(path: Path) -> NDArray[Any]:
        array: NDArray[Any] = np.load(path, allow_pickle=False)
        return array

    return read_file(path, "a numpy array", read)


def read_json(path: Path) -> Any:
    """A JSON file, whatever its name ends in."""
    return read_file(path, "JSON", lambda path: json.loads(path.read_text(encoding="utf-8")))


def class_codes(path: Path, values: Tensor, classes: int) -> Tensor:
    """The values, if all are classes 0 … `classes` − 1, or 255 for unknown; else an error."""
    found = values[(values >= classes) & (values != 255)]
    if len(found):
        raise BrokenFileError(
            path, f"should hold values 0 … {classes - 1} and 255, found {sorted(set(found.tolist()))}"
        )
    return values
