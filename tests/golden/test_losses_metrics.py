"""Losses, their gradients and metrics against the authors' released code."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2 import losses
from fedhca2.metrics import AngularError, DepthRMSE, MeanIoU
from fedhca2.tasks import TASKS

GOLDEN = np.load(Path(__file__).parent / "data" / "losses_metrics.npz")
LOSSES = {
    "ce": losses.cross_entropy,
    "sal": losses.balanced_cross_entropy,
    "edge": losses.edge_bce,
    "normals": losses.normals_l1,
    "depth": losses.depth_l1,
}
CASES = sorted({key.split("/")[1] for key in GOLDEN.files if key.startswith("loss/")})
RECORDED = [case for case in CASES if f"loss/{case}/value" in GOLDEN and not np.isnan(GOLDEN[f"loss/{case}/value"])]


def tensor(key):
    return torch.from_numpy(GOLDEN[key])


def evaluated(case):
    output = tensor(f"loss/{case}/output").requires_grad_()
    value = LOSSES[case.split("_")[0]](output, tensor(f"loss/{case}/label"))
    value.backward()
    return value.detach(), output.grad


@pytest.mark.parametrize("case", RECORDED)
def test_loss_value_and_gradient(case):
    value, gradient = evaluated(case)
    assert_close(value.double(), tensor(f"loss/{case}/value"), rtol=1e-6, atol=0)
    assert_close(gradient, tensor(f"loss/{case}/grad").float(), rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("case", [case for case in CASES if case.endswith("all_ignored")])
def test_loss_and_gradient_without_a_valid_pixel_are_zero(case):
    value, gradient = evaluated(case)
    assert (value, bool(gradient.any())) == (0, False)


@pytest.mark.parametrize("dataset", ["pascalcontext", "nyud"])
def test_weighted_total(dataset):
    prefix = f"mtl/{dataset}/pred/"
    names = [key.removeprefix(prefix) for key in GOLDEN.files if key.startswith(prefix)]
    total = sum(
        TASKS[name].weight * TASKS[name].loss(tensor(prefix + name), tensor(f"mtl/{dataset}/gt/{name}"))
        for name in names
    )
    assert_close(total.double(), tensor(f"mtl/{dataset}/loss/total"), rtol=1e-6, atol=0)


@pytest.mark.parametrize("case", ["semseg", "semseg_good"])
def test_mean_iou_over_two_batches(case):
    metric = MeanIoU(40, absent="zero")
    for batch in "01":
        metric.update(tensor(f"metric/nyud/{case}/pred{batch}")[:, None], tensor(f"metric/nyud/{case}/gt{batch}"))
    assert metric.compute()[metric.name] == pytest.approx(float(GOLDEN[f"metric/nyud/{case}/score/mIoU"]), rel=1e-12)


@pytest.mark.parametrize(
    ("task", "metric", "score", "tolerance"),
    [("normals", AngularError, "mErr", 1e-6), ("depth", DepthRMSE, "RMSE", 1e-7)],
)
@pytest.mark.parametrize("quality", ["", "_good"])
def test_metric_over_two_batches(task, metric, score, tolerance, quality):
    accumulator, prefix = metric(), f"metric/nyud/{task}{quality}"
    for batch in "01":
        accumulator.update(TASKS[task].predict(tensor(f"{prefix}/out{batch}")), tensor(f"{prefix}/gt{batch}"))
    assert accumulator.compute()[metric.name] == pytest.approx(float(GOLDEN[f"{prefix}/score/{score}"]), rel=tolerance)
