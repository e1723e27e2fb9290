"""Random projections of rows, which keep inner products on average."""

import pytest
import torch
from made_rows import KINDS, layout_of, make, plain_products
from torch.testing import assert_close

from fedhca2.aggregation.rows import PlainRows, Projection


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
    actual = PlainRows(data).sketch(Projection.draw(20_000, 1024, seed=5))
    assert_close(actual, make(layout_of([20_000]), data).sketches(1024, seed=5), rtol=1e-6, atol=1e-5)
