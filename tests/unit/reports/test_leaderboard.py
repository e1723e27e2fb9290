import csv
import json
import shutil
from io import StringIO
from math import isnan

import pytest
from typer.testing import CliRunner

import fedhca2
from fedhca2.cli import app
from made_run import made_run


@pytest.fixture
def runs(tmp_path):
    for seed, better in enumerate((1.1, 1.3)):
        made_run(tmp_path / "good" / f"seed-{seed}", better=better, seed=seed)
    made_run(tmp_path / "bad", method="fedavg", better=0.9)
    made_run(tmp_path / "alone", method="local")
    made_run(tmp_path / "begun", method="fedper", finished=False)
    return tmp_path


def test_the_best_method_comes_first_and_unfinished_runs_are_left_out(runs):
    board = fedhca2.leaderboard(runs)
    assert [record["method"] for record in board] == ["fedhca2", "local", "fedavg"]


def test_a_run_without_a_baseline_is_compared_with_local_of_its_seed(runs):
    result = runs / "bad" / "result.json"
    written = json.loads(result.read_text())
    result.write_text(json.dumps({key: value for key, value in written.items() if key not in ("baseline", "delta_m")}))
    gains = [-10, -10, -10, 100 * (1 - 1 / 0.9)]  # of four scores, the last of them of depth
    assert fedhca2.leaderboard(runs)[-1]["delta_m"] == pytest.approx(sum(gains) / 4)
    shutil.rmtree(runs / "alone")
    assert isnan(fedhca2.leaderboard(runs)[-1]["delta_m"])


def test_every_record_has_the_same_columns_with_values_of_one_type(runs):
    (columns,) = {tuple((key, type(value)) for key, value in record.items()) for record in fedhca2.leaderboard(runs)}
    assert "delta_m" in dict(columns)


def test_numbers_are_means_over_seeds(runs):
    first, *_ = fedhca2.leaderboard(runs)
    assert first["seeds"] == 2
    assert first["delta_m"] == pytest.approx(20)
    assert first["standard_deviation"] == pytest.approx(200**0.5)
    assert (first["seconds"], first["bytes_up"]) == (4.5, 3600)


def test_the_worst_client_gained_least(runs):
    first, *_ = fedhca2.leaderboard(runs)
    depth = [100 * (1 - 1 / better) for better in (1.1, 1.3)]  # which has to be small
    assert first["worst_client"] == "home"
    assert first["worst_gain"] == pytest.approx(((10 + 30) / 2 + sum(depth) / 2) / 2)


def test_the_command_prints_the_same_records(runs):
    def printed(*words):
        done = CliRunner().invoke(app, ["leaderboard", str(runs), *words])
        assert done.exit_code == 0
        return done.stdout

    assert json.loads(printed("--json"))[0]["delta_m"] == pytest.approx(20)
    assert next(csv.DictReader(StringIO(printed("--csv"))))["worst_client"] == "home"
    assert "+20.00 ± 14.14" in printed()


def test_an_empty_folder_has_no_board(tmp_path):
    assert "No finished runs" in CliRunner().invoke(app, ["leaderboard", str(tmp_path)]).stdout
