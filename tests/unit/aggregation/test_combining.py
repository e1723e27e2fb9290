"""Rows combined coordinate by coordinate: the formulas in plain numpy, and the same rows wherever they are stored."""

import numpy as np
import pytest
import torch
from made_rows import in_files, layout_of, make, many_rows
from torch.testing import assert_close

from fedhca2.aggregation import mix_rows
from fedhca2.methods import METHODS

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
