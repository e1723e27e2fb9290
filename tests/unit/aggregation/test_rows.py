"""Fast inner products, mixtures and projections against formulas in float64, of rows in memory and in files."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from made_rows import KINDS, in_files, layout_of, make, many_rows, plain, plain_products
from torch.testing import assert_close

from fedhca2.aggregation import MappedRow
from fedhca2.aggregation.cpu_rows import COLUMNS, FEW
from fedhca2.aggregation.rows import PlainRows, projection
from warm import output_of

brief = settings(max_examples=25, deadline=None)


SIZES = (1, 2, 7, 64, 1023, 1024, 1025, 3000)
SIZES_ON_GPU = (1, 2, 7, 64, 1025, 4095, 4096, 4097, 9000)  # around the length of its short products


@st.composite
def stacks(draw, kinds=KINDS, most=30, sizes=SIZES):
    """Rows of any number, type, tensors and scale, some of them not contiguous in memory."""
    sizes = draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=4))
    n, kind = draw(st.integers(1, most)), draw(st.sampled_from(kinds))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    data = [torch.randn(2 * sum(sizes), generator=rng).to(kind) for _ in range(n)]
    return sizes, [row[::2] if draw(st.booleans()) else row[: sum(sizes)] for row in data]


def within_float32(actual, expected, summed):
    """Whether products are off by no more than `summed` float32 values added in any order, and mostly by far less.

    A processor's order of sums moves single products; TF32, or sums in bfloat16, would move all of them.
    """
    lengths = expected.diagonal(dim1=-2, dim2=-1).sqrt()
    scale = lengths[..., :, None] * lengths[..., None, :]
    return ((actual - expected).abs() <= summed * 2**-24 * scale).all() and (
        actual - expected
    ).norm() <= 1e-6 * scale.norm()


@brief
@given(stack=stacks())
def test_products_and_lengths_of_any_rows(stack):
    sizes, data = stack
    rows, expected = make(layout_of(sizes), data), plain_products(data, sizes)
    assert within_float32(rows.products("rows"), expected, COLUMNS)
    if len(data) <= FEW:
        assert_close(rows.products("rows"), expected, rtol=1e-12, atol=1e-11)
    assert within_float32(rows.products("rows", whole=True)[0], expected.sum(dim=0), COLUMNS)
    lengths = torch.stack([torch.linalg.vector_norm(row.double()) for row in data])
    assert_close(rows.norms(), lengths, rtol=1e-12, atol=0)


@pytest.mark.parametrize("spread", [1e-3, 1e3])
@pytest.mark.parametrize("n", [13, 48, 100])
def test_products_of_many_rows_are_near_those_of_float64(n, spread):
    data = many_rows(n, 20_000, spread)
    exact = plain_products(data, [20_000])
    lengths = exact.diagonal(dim1=1, dim2=2).sqrt()
    errors = (make(layout_of([20_000]), data).products("rows") - exact) / lengths[:, :, None] / lengths[:, None]
    assert errors.square().mean().sqrt() <= 5e-8  # 1e-8 with AVX-512; 3e-8 with SSE, which sums longer chains


@brief
@given(stack=stacks())
def test_differences_of_any_rows(stack):
    sizes, data = stack
    data = [row.double() for row in data]
    actual = make(layout_of(sizes), [1000 + 1e-3 * row for row in data]).products("differences")
    near = [1000 + 1e-3 * row for row in data]
    expected = plain_products([row - near[0] for row in near], sizes)
    assert_close(actual, expected, rtol=1e-9, atol=1e-12)


def test_differences_of_many_float32_rows_keep_their_digits():
    data = [1000 + torch.randn(3000, generator=torch.Generator().manual_seed(i)) / 100 for i in range(20)]
    actual = make(layout_of([3000]), data).products("differences")
    expected = plain_products([row.double() - data[0].double() for row in data], [3000])
    assert_close(actual, expected, rtol=1e-5, atol=1e-5)


@brief
@given(stack=stacks(), count=st.integers(1, 9), per_tensor=st.booleans(), zeros=st.sampled_from([0, 0.3]))
def test_mixtures_of_any_rows(stack, count, per_tensor, zeros):
    sizes, data = stack
    rng = torch.Generator().manual_seed(count)
    weights = torch.randn(len(sizes), count, len(data), dtype=torch.float64, generator=rng)
    weights[torch.rand(weights.shape, generator=rng) < zeros] = 0
    weights = weights if per_tensor else weights[:1].expand(len(sizes), -1, -1)
    pieces = torch.stack([row.double() for row in data]).split(sizes, dim=1)
    expected = torch.cat([matrix @ piece for matrix, piece in zip(weights, pieces, strict=True)], dim=1)
    actual = make(layout_of(sizes), data).mix(weights if per_tensor else weights[0])
    assert_close(torch.stack(actual), expected.float(), rtol=2e-7, atol=1e-12 * len(data))


def test_a_mixture_has_the_same_bits_alone_and_with_others():
    rng = torch.Generator().manual_seed(0)
    rows = make(layout_of([20_000]), [torch.randn(20_000, generator=rng) for _ in range(14)])
    weights = torch.rand(6, 14, dtype=torch.float64, generator=rng) + 0.1
    alone = [rows.mix(each[None])[0] for each in weights]
    assert all(map(torch.equal, rows.mix(weights), alone))


@pytest.mark.parametrize("n", [4, 13, 48, 100])
def test_a_mixture_s_value_has_the_same_bits_in_a_short_row(n):
    data, rng = many_rows(n, 3000), torch.Generator().manual_seed(0)
    weights = torch.rand(5, n, dtype=torch.float64, generator=rng) - 0.5
    whole = make(layout_of([3000]), data).mix(weights)
    for start, stop in [(0, 1), (5, 22), (1000, 1030), (2047, 3000)]:
        short = make(layout_of([stop - start]), [row[start:stop] for row in data]).mix(weights)
        assert all(torch.equal(mixed[start:stop], cut) for mixed, cut in zip(whole, short, strict=True))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("n", [4, 13, 48, 100])
def test_a_value_that_is_not_finite_spoils_only_its_row_and_column(value, n):
    data = many_rows(n, 3000)
    data[1][1500] = value
    rows = make(layout_of([3000]), data)
    mixed = torch.stack(rows.mix(torch.full((n, n), 1 / n, dtype=torch.float64)))
    assert (~mixed.isfinite()).nonzero()[:, 1].tolist() == [1500] * n
    actual = rows.products("rows")[0].diagonal().isfinite()
    assert (~actual).nonzero().tolist() == [[1]]


@pytest.mark.parametrize("n", [4, 14, 48, 100])
def test_bits_do_not_depend_on_the_number_of_threads(n):
    rows = make(layout_of([2000, 5000]), many_rows(n, 7000), chunk=1500)
    weights = torch.rand(2, n, n, generator=torch.Generator().manual_seed(0)) + 0.1
    actual = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            actual.append([rows.products("rows"), rows.norms(), *rows.sketches(1024, 3), *rows.mix(weights)])
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(*pair) for others in actual[1:] for pair in zip(actual[0], others, strict=True))


@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_many_rows_beyond_the_range_of_float32_products(scale):
    data = [scale * torch.randn(100, generator=torch.Generator().manual_seed(i)) for i in range(20)]
    actual = make(layout_of([100]), data).products("rows")
    assert_close(actual / scale**2, plain_products(data, [100]) / scale**2, rtol=1e-12, atol=1e-11)


def test_rows_that_carry_gradients_are_measured_too_and_rows_without_a_value():
    data = [torch.ones(5, requires_grad=True), torch.ones(5).bfloat16()]
    assert make(layout_of([5]), data).products("rows").tolist() == [[[5, 5], [5, 5]]]
    rows = make(layout_of([0]), [torch.ones(0), torch.ones(0)])
    assert (rows.products("rows", whole=True).tolist(), len(rows.mix(torch.ones(1, 2))[0])) == ([[[0, 0], [0, 0]]], 0)


@brief
@given(stack=stacks(sizes=SIZES_ON_GPU), chunk=st.sampled_from([1000, 1 << 20]), count=st.integers(1, 3))
def test_a_gpu_s_way_gives_the_numbers_of_float64(stack, chunk, count):
    sizes, data = stack
    rows = plain(layout_of(sizes), data, chunk)
    assert_close(rows.products("rows"), plain_products(data, sizes), rtol=1e-12, atol=1e-11)
    differences = plain_products([row.double() - data[0].double() for row in data], sizes)
    assert_close(rows.products("differences"), differences, rtol=1e-12, atol=1e-11)
    assert_close(rows.norms(), make(layout_of(sizes), data).norms(), rtol=1e-12, atol=0)
    weights = torch.rand(len(sizes), count, len(data), dtype=torch.float64)
    expected = make(layout_of(sizes), data).mix(weights)
    assert_close(torch.stack(rows.mix(weights)), torch.stack(expected), rtol=1e-6, atol=1e-12)


def long_rows(count=12, columns=20_000, kind=torch.float32):
    """Rows of very different lengths, with cosines from -0.5 to 1, whose size is in few columns."""
    rng = torch.Generator().manual_seed(0)
    data = torch.randn(count, columns, generator=rng) * torch.logspace(-1, 1, columns)
    data[1] = -0.5 * data[0] + 0.5 * data[1]
    return list((data * torch.logspace(-2, 1, count)[:, None]).to(kind))


def test_sketches_keep_products_on_average():
    rows = make(layout_of([20_000]), long_rows(count=4))
    exact, size, draws = rows.products("rows", whole=True)[0], 256, 400
    sketched = torch.stack([(s := rows.sketches(size, seed)[0].double()) @ s.T for seed in range(draws)])
    lengths = exact.diagonal().sqrt()
    allowed = ((lengths[:, None] * lengths) ** 2 + exact**2) / size
    assert ((sketched.mean(dim=0) - exact).abs() <= 4 * (allowed / draws).sqrt()).all()
    assert (sketched.var(dim=0) <= 1.3 * allowed).all()


@pytest.mark.parametrize("kind", KINDS)
def test_estimated_products_have_exact_lengths_and_near_cosines(kind):
    data = long_rows(kind=kind)
    exact = plain_products(data, [20_000])[0]
    actual = make(layout_of([20_000]), data).estimated_products(4096, seed=0)[0]
    lengths = exact.diagonal().sqrt()
    assert_close(actual.diagonal(), exact.diagonal(), rtol=1e-6, atol=0)
    assert ((actual - exact).abs() <= 6 / 4096**0.5 * lengths[:, None] * lengths).all()
    assert torch.linalg.eigvalsh(actual / lengths[:, None] / lengths)[0] > -1e-6


def test_short_rows_are_measured_exactly_and_a_row_that_is_not_finite_shows():
    rows = make(layout_of([300, 700]), long_rows(columns=1000))
    assert torch.equal(rows.estimated_products(1024, seed=0), rows.products("rows", whole=True))
    data = long_rows(count=3)
    data[1][777] = torch.nan
    lengths = make(layout_of([20_000]), data).estimated_products(1024, seed=0)[0].diagonal()
    assert lengths.isfinite().tolist() == [True, False, True]


def test_a_sketch_has_the_same_bits_alone_and_with_others():
    data = long_rows(count=6)
    together = make(layout_of([20_000]), data).sketches(1024, seed=3)
    for number, row in enumerate(data):
        alone = make(layout_of([20_000]), [row]).sketches(1024, seed=3)
        assert torch.equal(together[0][number], alone[0][0])
        assert together[1][number] == alone[1][0]


def test_a_gpu_s_way_gives_the_same_sketches():
    data = long_rows(count=3)
    actual = PlainRows(data).sketch(1024, *projection(20_000, 1024, seed=5))
    assert_close(actual, make(layout_of([20_000]), data).sketches(1024, seed=5), rtol=1e-6, atol=1e-5)


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
