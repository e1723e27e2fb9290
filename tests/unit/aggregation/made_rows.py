"""Stacks of rows for tests."""

import torch

from fedhca2.aggregation import MappedRow, Member, Rows
from fedhca2.aggregation.rows import PlainRows
from fedhca2.params import Layout

KINDS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def make(layout, data, **options):
    return Rows([Member(str(i), "g") for i in range(len(data))], layout, data, **options)


def layout_of(sizes):
    return Layout(tuple(f"t{i}.weight" for i in range(len(sizes))), tuple((size,) for size in sizes))


def many_rows(n, columns, spread=1.0):
    """Rows around a common one; with a small spread they are nearly parallel."""
    rng = torch.Generator().manual_seed(n)
    common = torch.randn(columns, generator=rng)
    return [common + spread * torch.randn(columns, generator=rng) for _ in range(n)]


def in_files(data, folder):
    """The same rows in files."""
    for number, row in enumerate(data):
        (folder / str(number)).write_bytes(row.view(torch.uint8).numpy())
    return [MappedRow.open(folder / str(number), len(row), row.dtype) for number, row in enumerate(data)]


def plain_products(data, sizes):
    stack = torch.stack([row.double() for row in data])
    return torch.stack([piece @ piece.T for piece in stack.split(sizes, dim=1)])


def plain(layout, data, chunk):
    """Rows on a CPU that are computed in plain torch, as on a GPU."""
    rows = make(layout, data)
    rows.store = PlainRows(data, chunk)
    return rows
