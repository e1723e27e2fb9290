"""Single files of a data set: what is read exactly, what is scaled, what is refused."""

from zlib import crc32

import numpy as np
import pytest
from PIL import Image

from fedhca2.data.files import BrokenFileError, read_colours, read_npy, read_shades, read_size, read_values

WIDE = np.arange(256, dtype=np.uint16).reshape(16, 16)


def written(tmp_path, values, suffix="png"):
    path = tmp_path / f"image.{suffix}"
    Image.fromarray(values).save(path)
    return path


def test_a_grey_image_of_16_bits_is_scaled_to_8(tmp_path):
    assert np.array_equal(read_colours(written(tmp_path, WIDE * 257)), np.stack([WIDE] * 3))


def test_classes_in_16_bits_are_read_as_they_are(tmp_path):
    assert np.array_equal(read_values(written(tmp_path, WIDE))[0], WIDE)


def test_classes_above_255_are_refused(tmp_path):
    with pytest.raises(BrokenFileError, match=r"image\.png: expected values 0 … 255, got 256"):
        read_values(written(tmp_path, WIDE + np.uint16(1)))


def test_shades_in_16_bits_are_scaled_to_8(tmp_path):
    assert np.array_equal(read_shades(written(tmp_path, WIDE * 257))[0], WIDE)


@pytest.mark.parametrize("kind", [np.int32, np.float32])
def test_an_image_of_32_bits_is_refused(tmp_path, kind):
    with pytest.raises(BrokenFileError, match="expected 8 or 16 bits per channel, got 32"):
        read_colours(written(tmp_path, WIDE.astype(kind), "tiff"))


@pytest.mark.parametrize("read", [read_colours, read_size, read_values, read_shades])
@pytest.mark.parametrize("side", [9_000, 11_000, 20_000])  # below Pillow's warning, below its error, above
@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_of_too_many_pixels_is_refused_before_it_is_decoded(tmp_path, read, side):
    path = written(tmp_path, np.zeros((1, 1), np.uint8))
    header = bytearray(path.read_bytes())
    header[16:24] = side.to_bytes(4, "big") * 2
    header[29:33] = crc32(bytes(header[12:29])).to_bytes(4, "big")
    path.write_bytes(header)
    with pytest.raises(BrokenFileError, match=r"image\.png: .*(expected at most \d+ pixels, .* got|exceeds limit)"):
        read(path)


@pytest.mark.parametrize("read", [read_colours, read_size, read_values, read_shades])
def test_a_thin_image_is_refused_however_few_pixels_it_has(tmp_path, read):
    with pytest.raises(BrokenFileError, match=r"image\.png: .* 32768 on a side, got 1×40000"):
        read(written(tmp_path, np.zeros((1, 40_000), np.uint8)))


def test_an_array_of_objects_is_not_unpickled(tmp_path):
    np.save(tmp_path / "depth.npy", np.array([{}], object), allow_pickle=True)
    with pytest.raises(BrokenFileError, match=r"depth\.npy"):
        read_npy(tmp_path / "depth.npy")


def test_an_array_that_says_to_be_huge_takes_no_memory(tmp_path):
    path = tmp_path / "depth.npy"
    with path.open("wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (400_000, 400_000)}
        np.lib.format.write_array_header_1_0(file, header)
    with pytest.raises(BrokenFileError, match=r"depth\.npy"):
        read_npy(path)


def test_several_arrays_are_not_one(tmp_path):
    np.savez(tmp_path / "depth", a=np.zeros(3))
    with pytest.raises(BrokenFileError, match="expected an array of at most 40000000 numbers, got NpzFile"):
        read_npy(tmp_path / "depth.npz")


def test_a_program_in_an_image_file_is_not_started(tmp_path):
    (tmp_path / "image.png").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n")
    with pytest.raises(BrokenFileError, match="cannot identify image file"):
        read_colours(tmp_path / "image.png")
