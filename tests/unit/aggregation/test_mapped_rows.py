"""Rows that wait in files: their values, their bits, and the memory they take."""

import numpy as np
import pytest
import torch
from made_rows import in_files, layout_of, make, many_rows

from fedhca2.aggregation import MappedRow
from warm import output_of


@pytest.fixture
def mapped(tmp_path):
    row = torch.randn(50_000, generator=torch.Generator().manual_seed(0)).bfloat16()
    return row, in_files([row], tmp_path)[0]


@pytest.mark.parametrize("expected", [(), (0, 0), (0, 1), (1, 5), (0, 10**9)])
def test_a_mapped_row_has_the_values_of_its_file_also_after_release(mapped, expected):
    row, actual = mapped
    for _ in range(2):
        if expected:
            actual.expect(*expected)
        assert torch.equal(actual, row)
        actual.release()


def test_a_file_that_is_too_short_is_an_error(mapped, tmp_path):
    with pytest.raises(RuntimeError):
        MappedRow.open(tmp_path / "0", 50_001, torch.bfloat16)


FLAT = """
import sys
from pathlib import Path
import torch
from fedhca2.aggregation import MappedRow, Member, Rows
from fedhca2.params import Layout

torch.set_num_threads(1)
values, path = 1_000_000, sys.argv[1]

def peak(clients):
    rows = [MappedRow.open(path, values, torch.bfloat16) for _ in range(clients)]
    rows = Rows([Member(str(i), "g") for i in range(clients)], Layout(("a.weight",), ((values,),)), rows)
    Path("/proc/self/clear_refs").write_text("5")
    rows.products("rows", whole=True)
    rows.mix(torch.full((1, clients), 1 / clients))
    status = Path("/proc/self/status").read_text().split("VmHWM:")[1]
    return int(status.split()[0]) / 1024

peak(4)
print(peak(25), peak(100))
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_model_times_the_clients(tmp_path):
    path = tmp_path / "row"
    path.write_bytes(np.random.default_rng(0).normal(size=1_000_000).astype(np.float16).tobytes())
    few, many = map(float, output_of("-c", FLAT, path).split())
    assert many - few < 15  # MiB; 75 more rows are 143 MiB, and their part of the buffer is 5


def test_the_same_values_give_the_same_bits_however_they_are_stored(tmp_path):
    """As float32 and bfloat16 in memory, and as bfloat16 in files."""
    rows = [row.bfloat16() for row in many_rows(20, 150_001)]
    weights = torch.rand(3, 20, generator=torch.Generator().manual_seed(0))
    actual = []
    for data in ([row.float() for row in rows], rows, in_files(rows, tmp_path)):
        stack = make(layout_of([50_000, 100_001]), data)
        products = stack.products("rows"), stack.products("differences"), stack.norms()
        actual.append([*products, *stack.sketches(1024, 3), *stack.mix(weights)])
    assert all(torch.equal(*pair) for other in actual[1:] for pair in zip(actual[0], other, strict=True))
