import pytest
import torch
from torch.testing import assert_close

from fedhca2.methods import METHODS
from fedhca2.objectives import Attracted, add_pull, squared_distance

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


def trained_values(anchors, add):
    """Values with a gradient of their own, to which the pull's was added."""
    rng = torch.Generator().manual_seed(1)
    values = [torch.randn(anchor.shape, generator=rng, requires_grad=True) for anchor in anchors]
    loss = sum(value.sin().sum() for value in values)
    add(loss, values)
    return values


@pytest.mark.parametrize("pull", PULLING.values())
def test_the_pull_added_to_gradients_is_that_of_the_loss_bit_for_bit(pull):
    rng = torch.Generator().manual_seed(0)
    anchors = [torch.randn(1000, generator=rng), torch.randn(7, 3, generator=rng)]

    def to_loss(loss, values):
        (loss + 0.5 * pull * squared_distance(values, anchors)).backward()

    def to_gradients(loss, values):
        loss.backward()
        add_pull(values, anchors, pull)

    expected, found = (trained_values(anchors, add) for add in (to_loss, to_gradients))
    assert all(torch.equal(value.grad, other.grad) for value, other in zip(found, expected, strict=True))


def test_a_value_without_a_gradient_gets_that_of_the_pull_and_a_frozen_one_none():
    unused, frozen = torch.tensor([2.0], requires_grad=True), torch.tensor([2.0])
    add_pull([unused, frozen], [torch.zeros(1), torch.zeros(1)], pull=3.0)
    assert unused.grad == torch.tensor([6.0])
    assert frozen.grad is None
