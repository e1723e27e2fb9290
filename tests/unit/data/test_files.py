"""Single files of a data set: what is read exactly, what is scaled, what is refused before memory is taken for it."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from fedhca2.data.files import (
    BrokenFileError,
    _MatBudget,
    read_colours,
    read_mat,
    read_npy,
    read_shades,
    read_size,
    read_values,
)

MAX_BYTES, MAX_ITEMS = _MatBudget.max_bytes, _MatBudget.max_items
WIDE = np.arange(256, dtype=np.uint16).reshape(16, 16)


def written(tmp_path, values, suffix="png"):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(values).save(path)
    return path


@pytest.mark.parametrize(("read", "scale"), [(read_colours, 257), (read_shades, 257), (read_values, 1)])
def test_16_bits_of_colours_and_shades_become_8_and_classes_stay_as_they_are(tmp_path, read, scale):
    actual = read(written(tmp_path, WIDE * scale))
    assert np.array_equal(actual, np.stack([WIDE] * len(actual)))


@pytest.mark.parametrize(
    ("read", "values", "message"),
    [
        (read_colours, WIDE.astype(np.int32), "expected 8 or 16 bits per channel, got 32"),
        (read_colours, WIDE.astype(np.float32), "expected 8 or 16 bits per channel, got 32"),
        (read_values, WIDE + np.uint16(1), "expected values 0 … 255, got 256"),
    ],
)
def test_values_that_do_not_fit_are_refused(tmp_path, read, values, message):
    with pytest.raises(BrokenFileError, match=rf"image\.tiff: {message}"):
        read(written(tmp_path, values, "tiff"))


@pytest.mark.parametrize("read", [read_colours, read_size, read_values, read_shades])
@pytest.mark.parametrize("side", [9_000, 11_000, 20_000])  # below Pillow's warning, below its error, above
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, read, side):
    path = written(tmp_path, np.zeros((1, 1), np.uint8))
    header = bytearray(path.read_bytes())
    header[16:24] = side.to_bytes(4, "big") * 2
    header[29:33] = zlib.crc32(bytes(header[12:29])).to_bytes(4, "big")
    path.write_bytes(header)
    with pytest.raises(BrokenFileError, match=r"image\.png: .*(expected at most \d+ pixels, .* got|exceeds limit)"):
        read(path)


@pytest.mark.parametrize("read", [read_colours, read_size, read_values, read_shades])
def test_a_thin_image_is_refused_however_few_pixels_it_has(tmp_path, read):
    with pytest.raises(BrokenFileError, match=r"image\.png: .* 32768 on a side, got 1×40000"):
        read(written(tmp_path, np.zeros((1, 40_000), np.uint8)))


def test_an_array_of_objects_one_of_false_size_and_several_are_refused(tmp_path):
    path = tmp_path / "depth.npy"
    np.save(path, np.array([{}], object), allow_pickle=True)
    with pytest.raises(BrokenFileError, match=r"depth\.npy: .* Python objects"):
        read_npy(path)
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (400_000, 400_000)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(BrokenFileError, match=r"depth\.npy: "):
        read_npy(path)
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(3))
    with pytest.raises(BrokenFileError, match="expected an array of at most 40000000 numbers, got NpzFile"):
        read_npy(path)


def test_a_program_in_an_image_file_is_not_started(tmp_path):
    (tmp_path / "image.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(BrokenFileError, match="cannot identify image file"):
        read_colours(tmp_path / "image.png")


# MATLAB files, whose headers may lie about sizes.
CELL, STRUCT, DOUBLE, BYTE = 1, 2, 6, 9


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def array(kind, shape, *content, name=b"x"):
    flags, shape = struct.pack("<II", kind, 0), struct.pack(f"<{len(shape)}i", *shape)
    return element(14, element(6, flags) + element(5, shape) + element(1, name) + b"".join(content))


def compressed(content):
    packed = zlib.compress(content)
    return struct.pack("<II", 15, len(packed)) + packed


def mat_file(folder, *elements):
    path = folder / "label.mat"
    path.write_bytes(b"MATLAB 5.0 MAT-file".ljust(124) + struct.pack("<H", 0x0100) + b"IM" + b"".join(elements))
    return path


def fields(count):
    return element(5, struct.pack("<i", 8)) + element(1, bytes(8 * count))


def nested(depth):
    inner = array(BYTE, (1, 1), element(2, b"a"))
    for _ in range(depth):
        inner = array(CELL, (1, 1), inner)
    return inner


FALSE = {
    "a bomb": compressed(array(BYTE, (1, MAX_BYTES), element(2, bytes(MAX_BYTES)))),
    "many cells": array(CELL, (MAX_ITEMS, 10)),
    "many structs": array(STRUCT, (1000, 1000), fields(100)),
    "small numbers of a large class": array(DOUBLE, (1, MAX_BYTES // 4), element(2, b"a")),
    "many small arrays": array(CELL, (1, 20), *[array(BYTE, (1, MAX_BYTES // 10), element(2, b"a"))] * 20),
    "an element beyond the end": array(BYTE, (1, 8), struct.pack("<II", 2, 2**31)),
    "cells beyond the end": array(CELL, (1, 50_000)),
    "a negative shape": array(BYTE, (-1, -1), element(2, b"a")),
    "cells in cells": nested(3000),
    "an unknown class": array(17, (1, 1), element(2, b"a")),
}


@pytest.mark.parametrize("content", FALSE.values(), ids=FALSE.keys())
def test_a_false_size_is_one_line_and_takes_little_memory(tmp_path, content):
    path = mat_file(tmp_path, content)
    tracemalloc.start()
    with pytest.raises(BrokenFileError, match=r"label\.mat: ") as error:
        read_mat(path, "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (peak < 2.5 * MAX_BYTES, "\n" in str(error.value)) == (True, False)


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    "value",
    [
        np.arange(6, dtype=np.uint16).reshape(2, 3),
        np.zeros((0, 0)),
        np.array([["a word", 3.5, np.eye(2)]], object),
        {"one": np.ones((2, 2), bool), "other": "text", "third": {"fourth": 1j}},
    ],
)
def test_what_scipy_writes_is_read_but_not_in_an_old_version(tmp_path, value, compress):
    savemat(tmp_path / "label.mat", {"other": np.zeros(3), "x": value}, do_compression=compress)
    assert read_mat(tmp_path / "label.mat", "x").shape
    savemat(tmp_path / "old.mat", {"x": np.zeros(3)}, format="4")
    with pytest.raises(BrokenFileError, match="version 5"):
        read_mat(tmp_path / "old.mat", "x")


def test_another_variable_may_have_any_size(tmp_path):
    path = mat_file(tmp_path, array(CELL, (MAX_ITEMS, 10), name=b"y"), array(BYTE, (1, 1), element(2, b"a")))
    assert read_mat(path, "x").tolist() == [[97]]
