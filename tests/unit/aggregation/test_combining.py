"""Rows combined coordinate by coordinate: the formulas in plain numpy, and the same rows wherever they are stored."""

import numpy as np
import pytest
import scipy
import torch
from made_rows import in_files, layout_of, make, many_rows
from torch.testing import assert_close

from fedhca2.aggregation import Member, Rows, mix_rows
from fedhca2.methods import METHODS, Extrapolated, Graph, StepMean, Stock
from fedhca2.params import Layout

NAMES = ("coordinate_median", "trimmed_mean", "ties", "emr", "sign_agreement")
COLUMNS = 70_001  # more than one block


def combined(name, data, **settings):
    """What every member adds, [N, n]."""
    aggregator = METHODS[name].encoder.model_copy(update=settings)
    rows = make(layout_of([COLUMNS - 1, 1]) if len(data[0]) == COLUMNS else layout_of([len(data[0])]), data)
    mixing = aggregator.mixing(aggregator.products(rows, 0), rows.members, rows.layout)
    (new_rows,) = mix_rows(aggregator, "encoder", rows, mixing)
    assert mixing.base == "start"
    return torch.stack([new_rows[number] for number in mixing.blends[0].gets])


def by_numpy(name, stack):
    """The same, in float64."""
    count, columns = stack.shape
    match name:
        case "coordinate_median":
            return np.median(stack, axis=0)
        case "trimmed_mean":
            return np.sort(stack, axis=0)[1:-1].mean(axis=0)
        case "ties":
            trimmed = np.zeros_like(stack)
            for row, into in zip(stack, trimmed, strict=True):
                largest = np.argsort(-np.abs(row))[: round(0.2 * columns)]
                into[largest] = row[largest]
            sign = np.sign(trimmed.sum(axis=0))
            return np.nan_to_num(
                np.nanmean(np.where((np.sign(trimmed) == sign) & (sign != 0), trimmed, np.nan), axis=0)
            )
        case "emr":
            sign = np.sign(stack.sum(axis=0))
            elected = sign * np.where(stack * sign > 0, np.abs(stack), 0).max(axis=0)
            masked = np.where(stack * elected > 0, elected, 0)
            return masked * np.abs(stack).sum(axis=1, keepdims=True) / np.abs(masked).sum(axis=1, keepdims=True)
        case "sign_agreement":
            return np.where(np.abs(np.sign(stack).sum(axis=0)) >= 0.5 * count, stack.mean(axis=0), 0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("count", [3, 4, 7])
@pytest.mark.filterwarnings("ignore:Mean of empty slice")
def test_the_formula_in_numpy(name, count):
    data = many_rows(count, COLUMNS, spread=2)
    expected = np.broadcast_to(by_numpy(name, torch.stack(data).double().numpy()), (count, COLUMNS))
    assert_close(combined(name, data), torch.from_numpy(expected.copy()).float(), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", NAMES)
def test_files_and_memory_give_the_same_bits(name, tmp_path):
    data = [row.bfloat16() for row in many_rows(5, COLUMNS)]
    assert torch.equal(combined(name, in_files(data, tmp_path)), combined(name, [row.float() for row in data]))


@pytest.mark.parametrize("name", NAMES)
def test_one_client_keeps_what_its_method_keeps_of_one_and_zeros_stay_zeros(name):
    (row,) = many_rows(1, 100)
    expected = row * (row.abs() >= row.abs().sort().values[-20]) if name == "ties" else row
    assert_close(combined(name, [row])[0], expected)
    assert not combined(name, [torch.zeros(100)] * 3).any()


@pytest.mark.parametrize(("name", "settings"), [("trimmed_mean", {"hostile": 0}), ("sign_agreement", {"least": 0.0})])
def test_a_setting_of_zero_is_the_mean(name, settings):
    data = many_rows(4, 1000)
    assert_close(combined(name, data, **settings)[0], torch.stack(data).mean(dim=0))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("share", [1e-9, 0.2, 0.5, 1.0])
def test_thresholds_leave_a_share_of_each_row(kind, share):
    data = [row.to(kind) for row in many_rows(3, 1001)]
    actual = make(layout_of([1001]), data).thresholds(share)
    expected = [sorted(row.double().abs().tolist(), reverse=True)[max(1, round(share * 1001)) - 1] for row in data]
    assert actual.tolist() == expected


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
