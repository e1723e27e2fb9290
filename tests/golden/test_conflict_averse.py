"""Eq. 6-9 compared with the released code where its solver is right, and with a certified optimum everywhere."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhca2.aggregation import conflict_averse, conflict_averse_weights
from fedhca2.aggregation.solver import relative_gap

DATA = np.load(Path(__file__).parent / "data" / "conflict_averse.npz")
CASES = json.loads(str(DATA["cases"]))
DEFINED = [k for k, case in enumerate(CASES) if not case["direction_undefined"]]
# In case 48 (max_norm 2.3) the released solver stops 6e-4 away from the certified optimum, so it is wrong itself.
LARGE = [k for k in DEFINED if CASES[k]["max_norm"] >= 1 and k != 48]
UNDEFINED = [k for k, case in enumerate(CASES) if case["direction_undefined"]]


def updates(k):
    return torch.from_numpy(DATA[f"G_{k}"]).double()


def relative_error(actual, expected):
    return np.linalg.norm(actual.numpy() - expected) / np.linalg.norm(expected)


@pytest.mark.parametrize("k", DEFINED)
def test_the_direction_is_the_certified_optimum(k):
    gram = updates(k) @ updates(k).T
    weights = conflict_averse_weights(gram, CASES[k]["c"])
    assert relative_gap(gram.numpy(), weights.numpy(), CASES[k]["c"]) <= 1e-9
    assert relative_error(conflict_averse(updates(k), CASES[k]["c"], rescale=False), DATA[f"U_opt_{k}"]) <= 1e-6


@pytest.mark.parametrize("k", LARGE)
@pytest.mark.parametrize("rescale", [False, True])
def test_the_direction_is_that_of_the_released_code(k, rescale):
    direction = conflict_averse(updates(k), CASES[k]["c"], rescale=rescale)
    assert relative_error(direction, DATA[f"out_rescale{rescale:d}_{k}"]) <= 2e-4


@pytest.mark.parametrize("k", UNDEFINED)
def test_without_a_direction_the_constraint_of_eq_6_holds(k):
    mean = updates(k).mean(dim=0)
    actual = conflict_averse(updates(k), CASES[k]["c"], rescale=False)
    assert (actual - mean).norm() <= CASES[k]["c"] * mean.norm() + 1e-12 * CASES[k]["max_norm"]
