"""FedNova, FedExP, Model Stock and pFedGraph against derivations of a few lines of numpy on the rows themselves."""

import numpy as np
import pytest
import scipy
import torch

from fedhca2.aggregation import Member, Rows
from fedhca2.methods import Extrapolated, Graph, StepMean, Stock
from fedhca2.params import Layout

LAYOUT = Layout(("a.weight", "b.weight"), ((3,), (4,)))
DELTA = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32) + np.float32(1)
STEPS, SAMPLES = (2, 10, 5, 3), (10, 50, 25, 15)


def mixed(aggregator, rows=DELTA, steps=STEPS):
    """What every member gets: its first blend's row, scaled."""
    members = [Member(str(i), "g", SAMPLES[i], steps[i]) for i in range(len(rows))]
    stack = Rows(members, LAYOUT, list(torch.from_numpy(rows)))
    mixing = aggregator.mixing(aggregator.products(stack, 0), members, LAYOUT)
    (blend,) = mixing.blends
    new_rows = torch.stack(stack.mix(blend.weights)) * blend.scale
    return mixing.base, new_rows[list(blend.gets)].numpy()


@pytest.mark.parametrize("by", ["clients", "samples"])
def test_fednova(by):
    p = np.full(4, 0.25) if by == "clients" else np.array(SAMPLES) / 100
    a = np.array(STEPS)
    expected = (p @ a) * sum(p[i] * DELTA[i] / a[i] for i in range(4))
    base, actual = mixed(StepMean(by=by))
    assert base == "start"
    np.testing.assert_allclose(actual, np.tile(expected, (4, 1)), rtol=1e-5)


def test_fedexp():
    apart = DELTA - DELTA.mean(axis=0) * np.float32(0.6)
    mean = apart.mean(axis=0)
    eta = (apart**2).sum() / (2 * 4 * (mean**2).sum())
    assert 1 < eta < 4
    base, actual = mixed(Extrapolated(), apart)
    assert base == "start"
    np.testing.assert_allclose(actual[2], eta * mean, rtol=1e-4)
    opposed = DELTA - DELTA.mean(axis=0) * np.float32(0.99)  # it steps no farther than the sum of all updates
    np.testing.assert_allclose(mixed(Extrapolated(), opposed)[1][0], opposed.sum(axis=0), rtol=1e-3, atol=1e-5)


def test_model_stock_has_a_ratio_of_its_own_for_every_tensor():
    expected = []
    for part in (DELTA[:, :3], DELTA[:, 3:]):
        unit = part / np.linalg.norm(part, axis=1, keepdims=True)
        cosine = np.mean([unit[i] @ unit[j] for i in range(4) for j in range(4) if i != j])
        assert cosine > 0
        expected.append(4 * cosine / (3 * cosine + 1) * part.mean(axis=0))
    base, actual = mixed(Stock())
    assert base == "start"
    np.testing.assert_allclose(actual[1], np.concatenate(expected), rtol=1e-4)


@pytest.mark.parametrize(("signs", "share"), [([1], 1), ([1, 1, 1], 1), ([1, -1], 0)])
def test_model_stock_of_equal_updates_is_their_mean_and_of_opposite_ones_nothing(signs, share):
    rows = np.array(signs, np.float32)[:, None] * DELTA[:1]
    np.testing.assert_allclose(mixed(Stock(), rows)[1][0], share * DELTA[0], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("closeness", [0.2, 0.8, 50.0])
def test_pfedgraph_solves_its_problem(closeness):
    """The weights are at least as good as those that a general solver finds for the released code's problem."""
    centred = DELTA - DELTA.mean(axis=0)
    unit = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    cosine = unit @ unit.T
    cosine[cosine > 0.9] = 1
    p, base_and_found = np.full(4, 0.25), mixed(Graph(closeness=closeness))
    assert base_and_found[0] == "nothing"
    for i in range(4):

        def cost(w, i=i):
            return closeness * w @ w - (cosine[i] + 2 * closeness * p) @ w

        solved = scipy.optimize.minimize(
            cost, p, bounds=[(0, 1)] * 4, constraints={"type": "eq", "fun": lambda w: w.sum() - 1}, tol=1e-12
        ).x
        np.testing.assert_allclose(base_and_found[1][i], solved @ DELTA, rtol=1e-3, atol=1e-4)
