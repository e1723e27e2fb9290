import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhca2.aggregation.solver import relative_gap, solve

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
