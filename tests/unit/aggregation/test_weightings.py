"""Weights from a Gram matrix: against TorchJD, against their own definitions, and where definitions end."""

from itertools import permutations

import numpy as np
import pytest
import torch
import torchjd.aggregation as reference
from hypothesis import given, settings
from hypothesis import strategies as st
from torchjd.linalg import QuadprogProjector

from fedhca2.aggregation.rows import Member
from fedhca2.aggregation.solver import relative_gap, solve
from fedhca2.aggregation.weightings import WEIGHTINGS, fairgrad, mgda, pcgrad
from fedhca2.methods import ConflictAverse, Weighted
from fedhca2.params import Layout

LAYOUT = Layout(("x.weight",), ((1,),))
EXACT = QuadprogProjector(norm_eps=0.0, reg_eps=1e-12)
ALL = {**WEIGHTINGS, "fairgrad": lambda gram: fairgrad(gram, 2.0)}


def random(rows, columns, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, columns))


LINE = random(1, 6)
UPDATES = {
    "one": random(1, 5),
    "random": random(5, 9),
    "many": random(20, 60),
    "more than dimensions": random(6, 4, seed=3),
    "of all lengths": random(6, 30) * np.logspace(-3, 0, 6)[:, None],
    "orthogonal": np.diag([1.0, 2.0, 3.0]),
    "conflicting": np.array([[1.0, 0.0], [-0.9, 0.1], [-0.5, 0.8]]),
    "parallel": np.array([[1.0], [2.0], [0.5]]) * LINE,
    "opposite": np.array([[1.0], [-1.0]]) * LINE,
    "one against two": np.array([[1.0], [-2.0], [-3.0]]) * LINE,
    "with a zero": random(4, 6) * np.array([[1.0], [0.0], [1.0], [1.0]]),
    "equal": np.ones((4, 1)) * LINE,
}
every_kind = pytest.mark.parametrize("kind", UPDATES)
every_weighting = pytest.mark.parametrize("name", ALL)


def distance(updates, actual, expected):
    """How far two common updates are from each other, over the longest update."""
    return np.linalg.norm((np.asarray(actual) - np.asarray(expected)) @ updates) / np.linalg.norm(updates, axis=1).max()


@every_kind
@pytest.mark.parametrize(
    ("name", "weighting"),
    [
        ("mean", reference.MeanWeighting()),
        ("upgrad", reference.UPGradWeighting(projector=EXACT)),
        ("dualproj", reference.DualProjWeighting(projector=EXACT)),
        ("imtl_g", reference.IMTLGWeighting()),
        ("aligned_mtl", reference.AlignedMTLWeighting()),
    ],
)
def test_the_update_is_torchjd_s(name, weighting, kind):
    gram = UPDATES[kind] @ UPDATES[kind].T
    gram /= gram.max()
    assert distance(UPDATES[kind], WEIGHTINGS[name](gram), weighting(torch.from_numpy(gram))) < 1e-8


@pytest.mark.parametrize("kind", ["random", "many", "of all lengths", "orthogonal", "parallel", "equal"])
@pytest.mark.parametrize("fairness", [0.5, 1.0, 2.0, 10.0])
def test_fair_shares_solve_their_equation(kind, fairness):
    gram = UPDATES[kind] @ UPDATES[kind].T
    weights = fairgrad(gram, fairness)
    sides = (gram @ weights) * weights ** (1 / fairness)
    assert sides.max() - sides.min() <= 1e-9 * sides.min()


@every_kind
def test_mgda_is_the_shortest_and_certified(kind):
    gram = UPDATES[kind] @ UPDATES[kind].T
    weights = mgda(gram)
    expected_weights = reference.MGDAWeighting(epsilon=1e-12, max_iters=500)(torch.from_numpy(gram)).numpy()
    assert (weights >= 0).all()
    assert weights.sum() == pytest.approx(1)
    assert weights @ gram @ weights <= expected_weights @ gram @ expected_weights + 1e-12 * gram.max()
    assert weights @ gram @ weights - (gram @ weights).min() <= 1e-12 * gram.max()


def surgery(updates, order):
    """PCGrad as the paper has it, for one order of all updates: the mean, of vectors."""
    changed = []
    for own in range(len(updates)):
        vector = updates[own].copy()
        for other in order:
            conflict = vector @ updates[other]
            if other != own and conflict < 0:
                vector -= conflict / (updates[other] @ updates[other]) * updates[other]
        changed.append(vector)
    return np.mean(changed, axis=0)


@pytest.mark.parametrize("kind", ["one", "conflicting", "opposite", "random", "with a zero", "nine"])
def test_pcgrad_is_the_mean_over_all_orders(kind):
    """Of nine updates it is near the mean over a thousand orders."""
    updates = random(9, 12) if kind == "nine" else UPDATES[kind]
    orders = permutations(range(len(updates)))
    if kind == "nine":
        orders = [np.random.default_rng(seed).permutation(9) for seed in range(1000)]
    expected = np.mean([surgery(updates, order) for order in orders], axis=0)
    atol = 0.02 if kind == "nine" else 1e-12
    np.testing.assert_allclose(pcgrad(updates @ updates.T) @ updates, expected, atol=atol)


@every_weighting
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 6), scale=st.floats(1e-6, 1e6))
def test_neither_order_nor_scale_matters(name, seed, count, scale):
    updates = random(count, 8, seed)
    order = np.random.default_rng(seed).permutation(count)
    weights = ALL[name](updates @ updates.T)
    other = scale * updates[order]
    assert distance(updates[order], ALL[name](other @ other.T), weights[order]) < 1e-7


@every_weighting
def test_an_aggregator_gives_finite_weights_and_adds_nothing_where_nobody_moved(name):
    aggregator = Weighted(weighting=name)
    for updates in UPDATES.values():
        assert aggregator.weights(torch.from_numpy(updates @ updates.T)).isfinite().all()
    assert torch.equal(aggregator.weights(torch.zeros(2, 2)), torch.full((2,), 0.5).double())


def test_unit_updates_are_fmtl_bench_s():
    updates = UPDATES["conflicting"]
    units = updates / np.linalg.norm(updates, axis=1, keepdims=True)
    expected = np.mean([surgery(units, order) for order in permutations(range(3))], axis=0)
    weights = Weighted(weighting="pcgrad", unit=True).weights(torch.from_numpy(updates @ updates.T))
    np.testing.assert_allclose(weights.numpy() @ updates, expected, atol=1e-12)


def mixed(aggregator, gram, groups="abc", kept=(None, None, None)):
    members = [Member(f"c{i}", group, kept=past) for i, (group, past) in enumerate(zip(groups, kept, strict=True))]
    return aggregator.mixing(gram[None], members, LAYOUT)


GRAM = torch.from_numpy(UPDATES["conflicting"] @ UPDATES["conflicting"].T)


@pytest.mark.parametrize("name", ["mgda", "upgrad"])
def test_the_moving_average_is_torchjd_s(name):
    expected_weights = reference.CRMOGMWeighting(lambda gram: Weighted(weighting=name).weights(gram), alpha=0.8)
    kept = (None, None, None)
    for seed in range(4):
        updates = torch.from_numpy(random(3, 5, seed))
        mixing = mixed(Weighted(weighting=name, memory=0.8), updates @ updates.T, kept=kept)
        kept = mixing.keeps
        torch.testing.assert_close(mixing.blends[0].weights[0], expected_weights(updates @ updates.T))


def test_a_common_update_can_be_as_long_as_the_mean():
    weights = mixed(Weighted(weighting="mgda", length="mean", rate=2.0), GRAM).blends[0].weights[0]
    assert float(weights @ GRAM @ weights) == pytest.approx(4 * float(GRAM.mean()))


def test_without_alpha_the_common_update_replaces_the_own():
    mixing = mixed(ConflictAverse(alpha=None), GRAM)
    assert (mixing.base, len(mixing.blends), mixing.blends[0].hyper) == ("start", 1, False)


def test_colnet_weighs_the_means_of_groups():
    mixing = mixed(ConflictAverse(alpha=1, groups=True, across="groups"), GRAM, groups="aab")
    means = torch.tensor([[0.5, 0.5, 0], [0, 0, 1]], dtype=torch.float64)
    expected = ConflictAverse().weights(means @ GRAM @ means.T) @ means
    torch.testing.assert_close(mixing.blends[1].weights[0], expected)
    torch.testing.assert_close(mixing.blends[0].weights, means)


KINDS = ("random", "common", "scales", "low rank", "conflict")


def gram_of(kind, n, seed):
    rng = np.random.default_rng(seed)
    updates = rng.normal(size=(n, 7 if kind == "low rank" else 60))
    if kind == "common":
        updates = 0.3 * updates + rng.normal(size=60)
    if kind == "scales":
        updates *= 10 ** rng.uniform(-2, 0, (n, 1))
    if kind == "conflict":
        updates += rng.normal(size=60) * rng.choice([-1, 1.5], (n, 1))
    if kind == "low rank":
        updates += 4 * rng.normal(size=7) / 7**0.5
    return updates @ updates.T


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(KINDS), st.integers(1, 40), st.integers(0, 10**6), st.floats(0, 0.99))
def test_weights_are_on_the_simplex_with_a_certified_gap(kind, n, seed, c):
    gram = gram_of(kind, n, seed)
    w = solve(gram, c)
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(1, abs=1e-9)
    if w @ gram @ w > 1e-8 * gram.max():
        assert relative_gap(gram, w, c) <= 1e-9


def test_the_solution_does_not_depend_on_the_scale_and_a_worse_point_has_a_gap():
    gram = gram_of("conflict", 8, 0)
    for scale in (1e-12, 1e-4, 1e8):
        np.testing.assert_allclose(solve(scale * gram, 0.4), solve(gram, 0.4), atol=1e-9)
    assert relative_gap(gram, np.full(8, 1 / 8), 0.4) > 0.1


DEGENERATE = {
    "one update": [[2.0]],
    "zero": np.zeros((3, 3)),
    "identical": np.ones((4, 4)),
    "opposite": [[1.0, -1.0], [-1.0, 1.0]],
    "zero in the hull": [[1.0, -0.5, -0.5], [-0.5, 1.0, -0.5], [-0.5, -0.5, 1.0]],
    "one of them zero": [[1.0, 0.0], [0.0, 0.0]],
}


@pytest.mark.parametrize("c", [0.0, 0.4, 0.99])
@pytest.mark.parametrize("kind", DEGENERATE)
def test_degenerate_problems_have_finite_weights_on_the_simplex(kind, c):
    w = solve(np.array(DEGENERATE[kind]), c)
    assert (w >= 0).all()
    assert w.sum() == pytest.approx(1)
