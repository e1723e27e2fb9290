"""Inner products and mixtures on a GPU against the formula in float64."""

import pytest
import torch
from torch.testing import assert_close

from fedhca2.aggregation import Member, Rows, mix_rows
from fedhca2.methods import METHODS
from fedhca2.params import Layout

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
SIZES = (70_001, 3, 4096, 12_345)
LAYOUT = Layout(tuple(f"t{i}.weight" for i in range(len(SIZES))), tuple((size,) for size in SIZES))


@pytest.mark.parametrize("count", [1, 6, 24, 40, 100])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("measure", ["rows", "differences"])
def test_a_gpu_gives_the_products_and_mixtures_of_float64(count, kind, measure):
    rng = torch.Generator("cuda").manual_seed(0)
    common = torch.randn(sum(SIZES), generator=rng, device="cuda")
    data = [(common + torch.randn(sum(SIZES), generator=rng, device="cuda")).to(kind) for _ in range(count)]
    rows = Rows([Member(str(i), "g") for i in range(count)], LAYOUT, data)
    exact = torch.stack(data).double()
    measured = (exact - exact[0] if measure == "differences" else exact).split(SIZES, dim=1)
    expected = torch.stack([piece @ piece.T for piece in measured]).cpu()
    assert_close(rows.products(measure), expected, rtol=1e-12, atol=1e-12 * float(expected.abs().max()))
    weights = torch.rand(len(SIZES), 2, count, dtype=torch.float64)
    mixed = torch.cat([w.cuda() @ piece for w, piece in zip(weights, exact.split(SIZES, dim=1), strict=True)], dim=1)
    assert_close(torch.stack(rows.mix(weights)), mixed.float(), rtol=1e-6, atol=1e-6)
    assert_close(rows.norms(), exact.norm(dim=1).cpu(), rtol=1e-9, atol=0)


@pytest.mark.parametrize("count", [1, 6, 40])
@pytest.mark.parametrize("name", ["coordinate_median", "trimmed_mean", "ties", "emr", "sign_agreement"])
def test_a_gpu_combines_coordinates_as_a_cpu_does(name, count):
    rng, aggregator = torch.Generator().manual_seed(0), METHODS[name].encoder
    data = [torch.randn(sum(SIZES), generator=rng) for _ in range(count)]
    made = []
    for device in ("cpu", "cuda"):
        rows = Rows([Member(str(i), "g") for i in range(count)], LAYOUT, [row.to(device) for row in data])
        mixing = aggregator.mixing(aggregator.products(rows, 0), rows.members, LAYOUT)
        made.append(torch.stack(mix_rows(aggregator, "encoder", rows, mixing)[0]).cpu())
    assert_close(made[1], made[0], rtol=1e-6, atol=1e-7)
