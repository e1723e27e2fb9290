import pytest
import torch

from fedhca2.methods import METHODS
from fedhca2.objectives import Attracted, add_pull, squared_distance

PULLING = {"fedprox": 0.01, "ditto": 0.1, "fedamp": 1.0}  # as the papers say


@pytest.mark.parametrize("name", PULLING)
def test_the_gradient_points_away_from_the_anchor_which_gets_none(name, rng):
    values, anchors = torch.randn(2, 2, 3, generator=rng, dtype=torch.float64).requires_grad_().unbind()
    values.retain_grad()
    anchors.retain_grad()
    (METHODS[name].local.pull / 2 * squared_distance(values, anchors)).backward()
    torch.testing.assert_close(values.grad, PULLING[name] * (values - anchors).detach())
    assert anchors.grad is None
    assert Attracted(lam=3, alpha=2).pull == 1.5


@pytest.mark.parametrize("pull", PULLING.values())
def test_the_pull_added_to_gradients_is_that_of_the_loss_bit_for_bit(pull, rng):
    start, anchors = torch.randn(2, 1000, generator=rng).unbind()
    found, expected = start.clone().requires_grad_(), start.clone().requires_grad_()
    (expected.sin().sum() + 0.5 * pull * squared_distance([expected], [anchors])).backward()
    found.sin().sum().backward()
    add_pull([found], [anchors], pull)
    assert found.grad.equal(expected.grad)


def test_a_value_without_a_gradient_gets_that_of_the_pull_and_a_frozen_one_none():
    unused, frozen = torch.tensor([2.0], requires_grad=True), torch.tensor([2.0])
    add_pull([unused, frozen], [torch.zeros(1), torch.zeros(1)], pull=3.0)
    assert unused.grad == torch.tensor([6.0])
    assert frozen.grad is None
