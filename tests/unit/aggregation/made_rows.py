"""Stacks of rows for tests."""

import torch

from fedhca2.aggregation import Member, Rows, gpu_store
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


def plain_products(data, sizes):
    stack = torch.stack([row.double() for row in data])
    return torch.stack([piece @ piece.T for piece in stack.split(sizes, dim=1)])


def in_gpu_store(layout, data, chunk):
    """Rows on a CPU that use the GPU's code path."""
    rows = make(layout, data)
    rows.store = gpu_store.GpuStore(data, chunk)
    return rows
