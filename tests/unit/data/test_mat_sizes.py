"""MATLAB files whose headers lie about sizes: refused before memory is taken for them."""

import struct
import tracemalloc
import zlib

import numpy as np
import pytest
from scipy.io import savemat

from fedhca2.data import read_mat
from fedhca2.data.files import BrokenFileError, _MatBudget

MOST_BYTES, MOST_ITEMS = _MatBudget.max_bytes, _MatBudget.max_items
CELL, STRUCT, DOUBLE, BYTE = 1, 2, 6, 9


def element(kind, content):
    return struct.pack("<II", kind, len(content)) + content + bytes(-len(content) % 8)


def array(kind, shape, *content, name=b"x"):
    flags, shape = struct.pack("<II", kind, 0), struct.pack(f"<{len(shape)}i", *shape)
    return element(14, element(6, flags) + element(5, shape) + element(1, name) + b"".join(content))


def compressed(content):
    packed = zlib.compress(content)
    return struct.pack("<II", 15, len(packed)) + packed


def written(folder, *elements):
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
    "a bomb": compressed(array(BYTE, (1, MOST_BYTES), element(2, bytes(MOST_BYTES)))),
    "many cells": array(CELL, (MOST_ITEMS, 10)),
    "many structs": array(STRUCT, (1000, 1000), fields(100)),
    "small numbers of a large class": array(DOUBLE, (1, MOST_BYTES // 4), element(2, b"a")),
    "many small arrays": array(CELL, (1, 20), *[array(BYTE, (1, MOST_BYTES // 10), element(2, b"a"))] * 20),
    "an element beyond the end": array(BYTE, (1, 8), struct.pack("<II", 2, 2**31)),
    "cells beyond the end": array(CELL, (1, 50_000)),
    "a negative shape": array(BYTE, (-1, -1), element(2, b"a")),
    "cells in cells": nested(3000),
    "an unknown class": array(17, (1, 1), element(2, b"a")),
}


@pytest.mark.parametrize("content", FALSE.values(), ids=FALSE.keys())
def test_a_false_size_is_one_line_and_takes_little_memory(tmp_path, content):
    path = written(tmp_path, content)
    tracemalloc.start()
    with pytest.raises(BrokenFileError, match=r"label\.mat: ") as error:
        read_mat(path, "x")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (peak < 2.5 * MOST_BYTES, "\n" in str(error.value)) == (True, False)


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
def test_what_scipy_writes_is_read(tmp_path, value, compress):
    savemat(tmp_path / "label.mat", {"other": np.zeros(3), "x": value}, do_compression=compress)
    assert read_mat(tmp_path / "label.mat", "x").shape


def test_another_variable_may_have_any_size(tmp_path):
    path = written(tmp_path, array(CELL, (MOST_ITEMS, 10), name=b"y"), array(BYTE, (1, 1), element(2, b"a")))
    assert read_mat(path, "x").tolist() == [[97]]


def test_another_version_is_one_line(tmp_path):
    savemat(tmp_path / "label.mat", {"x": np.zeros(3)}, format="4")
    with pytest.raises(BrokenFileError, match="version 5"):
        read_mat(tmp_path / "label.mat", "x")
