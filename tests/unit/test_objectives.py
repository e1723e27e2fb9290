import pytest
import torch
from torch.testing import assert_close

from fedhca2.methods import METHODS
from fedhca2.objectives import Attracted, squared_distance

PULLING = {"fedprox": 0.01, "ditto": 0.1, "fedamp": 1.0}  # as the papers say


def problem():
    rng = torch.Generator().manual_seed(0)
    values = [torch.randn(3, 2, generator=rng, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    anchors = [torch.randn(3, 2, generator=rng, dtype=torch.float64) for _ in range(2)]
    return values, anchors


def added(objective, values, anchors):
    return objective.pull / 2 * squared_distance(values, anchors)


@pytest.mark.parametrize("name", PULLING)
def test_the_gradient_points_away_from_the_anchor(name):
    values, anchors = problem()
    added(METHODS[name].local, values, anchors).backward()
    assert_close(values[0].grad, PULLING[name] * (values[0] - anchors[0]).detach())


@pytest.mark.parametrize("name", PULLING)
def test_the_gradient_agrees_with_finite_differences(name):
    values, anchors = problem()
    assert torch.autograd.gradcheck(lambda *v: added(METHODS[name].local, v, anchors), values)


@pytest.mark.parametrize("name", PULLING)
def test_the_anchor_gets_no_gradient(name):
    values, anchors = problem()
    anchors[0].requires_grad_()
    added(METHODS[name].local, values, anchors).backward()
    assert anchors[0].grad is None


def test_the_strength_of_fedamp_is_lambda_over_alpha():
    assert Attracted(lam=3, alpha=2).pull == 1.5
