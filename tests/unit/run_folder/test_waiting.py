"""Rows that wait in files: a checkpoint that somebody else wrote says how to read them."""

import pytest
import torch

from fedhca2.messages import Addend, Delivery
from fedhca2.params import ENCODER
from fedhca2.run_folder.checkpoints import WaitingRow, WaitingRows, waiting_files


@pytest.fixture
def file(tmp_path):
    """A row of eight values in its file."""
    row = Delivery("nothing", (Addend(torch.arange(8.0)),))
    return next(waiting_files(WaitingRows(tmp_path).keep({"road": {ENCODER: row}})))


def test_a_row_is_read_as_it_was_written(file):
    assert WaitingRow.read(file, 8, "float32").tolist() == [*range(8)]


@pytest.mark.parametrize(
    ("numel", "dtype"),
    [
        (8, "nosuch"),
        (8, "load"),
        (8, "float64"),
        (8, "int32"),
        (8, None),
        (2, "float32"),
        (10**6, "float32"),
        (-1, "float32"),
        ("8", "float32"),
    ],
)
def test_a_length_or_type_that_the_file_does_not_have_is_refused(file, numel, dtype):
    with pytest.raises(ValueError, match=f"expected {numel} values of {dtype}, got 32 bytes"):
        WaitingRow.read(file, numel, dtype)


def test_a_file_with_other_content_is_refused(file):
    file.write_bytes(bytes(32))
    with pytest.raises(ValueError, match="expected a row with the content of its name"):
        WaitingRow.read(file, 8, "float32")


def test_a_row_of_a_checkpoint_and_a_new_one_with_the_same_content_share_a_file(file, tmp_path):
    old, new = WaitingRow.read(file, 8, "float32"), torch.arange(8.0)
    pending = {name: {ENCODER: Delivery("nothing", (Addend(row),))} for name, row in (("new", new), ("old", old))}
    kept = WaitingRows(tmp_path / "later").keep(pending)
    assert len(list(waiting_files(kept))) == 1
