import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.aggregation import Weights
from fedhca2.methods import HyperWeights

AGREEMENTS = st.lists(st.floats(-50, 50), min_size=1, max_size=12)


def by_torch(learned, start, agreements):
    """The same with torch's SGD."""
    weight = torch.tensor([start], dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.SGD([weight], lr=learned.lr, momentum=learned.momentum, weight_decay=learned.weight_decay)
    for agreement in agreements:
        inside = (weight >= 0) & (weight <= 1)
        weight.grad = -agreement * inside.double()
        optimiser.step()
    return weight.item()


@settings(deadline=None)
@given(st.floats(0, 1), AGREEMENTS)
def test_steps_are_those_of_sgd(start, agreements):
    learned = HyperWeights(weight_decay=0.01)
    weights = Weights.start([start])
    for agreement in agreements:
        weights = learned.step(weights, [agreement])
    assert weights.applied[0] == min(max(weights.value[0], 0), 1)
    assert weights.value[0] == pytest.approx(by_torch(learned, start, agreements), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "before", "agreement", "after"),
    [
        ({}, ((1.05,), (-1.0,)), [-100.0], ((1.05 + 0.01 * 0.9,), (-0.9,))),  # masked weights drift on their momentum
        ({"clamp": "project"}, ((0.95,), (-10.0,)), [0.0], ((1.0,), (0.0,))),  # projected ones lose it
        ({"learn": False}, ((0.1, 0.2), (0.0, 0.0)), [5.0, 5.0], ((0.1, 0.2), (0.0, 0.0))),
        ({}, ((0.5, 0.5), (0.0, 0.0)), [1.0, 0.0], ((0.51, 0.5), (-1.0, 0.0))),  # each layer learns on its own
    ],
)
def test_one_step(settings, before, agreement, after):
    actual = HyperWeights(weight_decay=0, **settings).step(Weights(*before), agreement)
    assert (actual.value, actual.momentum) == (pytest.approx(after[0]), pytest.approx(after[1]))
