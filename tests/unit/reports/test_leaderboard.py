import csv
import json
import shutil
from io import StringIO
from math import isnan

import pytest

import fedhca2
from command import as_json, printed
from made_run import made_run


@pytest.fixture
def runs(tmp_path):
    for seed, better in enumerate((1.1, 1.3)):
        made_run(tmp_path / "good" / f"seed-{seed}", better=better, seed=seed)
    made_run(tmp_path / "bad", method="fedavg", better=0.9)
    made_run(tmp_path / "alone", method="local")
    made_run(tmp_path / "begun", method="fedper", finished=False)
    return tmp_path


def test_without_a_baseline_and_local_a_gain_is_unknown(runs):
    result = runs / "bad" / "result.json"
    result.write_text(json.dumps({**json.loads(result.read_text()), "baseline": None, "delta_m": None}))
    assert fedhca2.leaderboard(runs)[-1]["delta_m"] == pytest.approx((-30 + 100 * (1 - 1 / 0.9)) / 4)
    shutil.rmtree(runs / "alone")
    assert isnan(fedhca2.leaderboard(runs)[-1]["delta_m"])


def test_finished_methods_are_ranked_with_means_over_seeds_and_the_client_that_gained_least(runs):
    board = fedhca2.leaderboard(runs)
    assert [record["method"] for record in board] == ["fedhca2", "local", "fedavg"]
    assert len({tuple((key, type(value)) for key, value in record.items()) for record in board}) == 1
    depth = [100 * (1 - 1 / better) for better in (1.1, 1.3)]  # which has to be small
    numbers = {"delta_m": 20, "standard_deviation": 200**0.5, "worst_gain": ((10 + 30) / 2 + sum(depth) / 2) / 2}
    assert {key: board[0][key] for key in numbers} == pytest.approx(numbers)
    others = {"seeds": 2, "seconds": 4.5, "bytes_up": 3600, "worst_client": "home"}
    assert {key: board[0][key] for key in others} == others


def test_the_command_prints_the_same_records(runs, tmp_path):
    assert as_json("leaderboard", runs)[0]["delta_m"] == pytest.approx(20)
    assert next(csv.DictReader(StringIO(printed("leaderboard", runs, "--csv"))))["worst_client"] == "home"
    assert "+20.00 ± 14.14" in printed("leaderboard", runs)
    assert "No finished runs" in printed("leaderboard", tmp_path / "begun")
