"""Which experiments work with secure aggregation, and the errors for those that do not."""

import pytest
import torch
from federations import small_experiment

from fedhca2.errors import UserError
from fedhca2.federation.run import run
from fedhca2.federation.sum_server import sketch_row
from fedhca2.methods import METHODS
from fedhca2.params import Slot
from fedhca2.run_folder.records import Watcher

SUMS = {"local", "fedavg", "fedprox", "fedper", "fedrep", "ditto", "fedbabu", "fedsta", "single_task_fl"}
SUMS |= {"fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedavg_ft", "fedper_ft", "fedbn", "fednova", "scaffold"}
SKETCHES = {"matfl", "cagrad", "pcgrad", "upgrad", "dualproj", "fedexp", "feddyn"}
REASONS = {
    **dict.fromkeys(("fedamp", "matfl_voting", "fedpull", "fedhca2"), "puts a row in several sums"),
    **dict.fromkeys(("colnet", "pfedgraph"), "puts a row in several sums"),
    **dict.fromkeys(("mgda", "imtl_g", "aligned_mtl", "nash_mtl", "fairgrad"), "give one row nearly all the weight"),
    **dict.fromkeys(("krum", "multi_krum", "geometric_median", "norm_clipping"), "must see the rows"),
    "model_stock": "compares rows tensor by tensor",
    **dict.fromkeys(("alone_longer", "pooled"), "needs all data in one place"),
    **dict.fromkeys(("coordinate_median", "trimmed_mean", "ties", "emr", "sign_agreement"), "must see every value"),
}
ENCODER = Slot("encoder")


def secured(method, settings=None, **changes):
    return small_experiment(method=method, secure_aggregation=settings or {}, **changes)


def refusal(*arguments, **changes):
    with pytest.raises(UserError) as caught:
        secured(*arguments, **changes)
    return str(caught.value)


@pytest.mark.parametrize("method", sorted(SUMS))
def test_methods_that_average_need_no_sketches(method):
    assert secured({"name": method}).secure_aggregation.sketch == 0


@pytest.mark.parametrize("method", sorted(SKETCHES))
def test_methods_that_compare_updates_need_sketches(method):
    assert "needs inner products" in refusal({"name": method})
    assert secured({"name": method}, {"sketch": 1024})


@pytest.mark.parametrize("method", sorted(set(METHODS) - SUMS - SKETCHES))
def test_methods_whose_sums_reveal_rows_are_refused_with_the_reason(method):
    assert REASONS[method] in refusal({"name": method}, {"sketch": 1024})


def test_fedhca2_with_sketches_may_keep_or_average_decoders():
    assert secured({"name": "fedhca2", "decoder": None}, {"sketch": 1024})
    assert secured({"name": "fedhca2", "decoder": {"kind": "group_mean"}}, {"sketch": 1024})


def test_settings_that_reveal_or_spoil_sums_are_refused():
    noisy = {"clip": 1.0, "noise": 4.0}
    assert "several sums" in refusal({"name": "fedhca2", "decoder": None, "groups": True}, {"sketch": 1024})
    assert "batch_norm 'average'" in refusal({"name": "fedper", "batch_norm": "average"})
    assert "clip: expected at least 32, 8 standard deviations" in refusal({"name": "fedper"}, privacy=noisy)
    assert secured({"name": "fedper"}, {"clip": 64}, privacy=noisy)


def test_secure_aggregation_in_one_process_is_refused(tmp_path):
    with pytest.raises(UserError, match="hides rows from a remote server"):
        run(secured({"name": "fedper"}, rounds=1), tmp_path / "run", watcher=Watcher())


def test_inner_products_of_sketches_estimate_those_of_rows():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(2, 3000, generator=rng).double()
    y = x + y
    sketches = [[sketch_row(row, 256, seed, ENCODER, 0).double() for row in (x, y)] for seed in range(200)]
    found = torch.stack([one @ other for one, other in sketches])
    deviation = float((x.norm() ** 2 * y.norm() ** 2 + (x @ y) ** 2) / 256) ** 0.5
    assert abs(float(found.mean() - x @ y)) < 5 * deviation / 200**0.5
    assert found.std() < 1.2 * deviation


def test_a_sketch_is_another_one_in_every_round():
    first, second, again = (sketch_row(torch.ones(100), 64, 0, ENCODER, round) for round in (0, 1, 1))
    assert not torch.equal(first, second)
    assert torch.equal(second, again)
