from math import isnan

import pytest

import fedhca2
from fedhca2 import Experiment, Run
from fedhca2.errors import UserError
from fedhca2.methods import Mean, Method
from fedhca2.records import Records
from made_run import made_run
from small_run import small


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = fedhca2.nonsense


@pytest.fixture
def made(tmp_path):
    made_run(tmp_path, rounds=2, better=1.1)
    return Run.open(tmp_path)


def test_an_unfinished_run_has_no_result(tmp_path):
    made_run(tmp_path, finished=False)
    with pytest.raises(UserError, match="expected a finished run"):
        _ = Run.open(tmp_path).result
    assert "not finished" in Run.open(tmp_path)._repr_html_()


def test_a_finished_run_has_a_result_and_a_report_in_its_folder_and_a_notebook_shows_it_in_short(made):
    assert made.result.delta_m == pytest.approx(10)
    assert made.report() == made.folder / "report.html"
    shown = made._repr_html_()
    assert "<td>+10.0%</td>" in shown
    assert "Δm +10.0%" in shown
    assert "Δm +10.0%" in repr(made.result)
    assert max(map(len, (repr(made.result), repr(made)))) < 120
    assert "<td>semseg</td>" in made.result._repr_html_()


def test_an_experiment_is_immutable():
    experiment = Experiment.load("demo")
    with pytest.raises(UserError, match=r"rounds: .*replace"):
        experiment.rounds = 5
    assert experiment.replace(rounds=5).rounds == 5


def test_scores_with_gains_histories_and_weights_of_every_layer_are_records(made):
    depth = next(record for record in made.scores() if record["task"] == "depth")
    assert (depth["client"], depth["metric"], depth["unit"]) == ("home", "rmse", "m")
    assert (depth["alone"], depth["gain"]) == (2.0, pytest.approx(100 * (1 - 1 / 1.1)))
    assert isnan(depth["trivial"])  # which the files of this run do not know
    own = [each for each in made.history() if (each["client"], each["metric"]) == ("road", "loss")]
    assert [(each["round"], each["value"]) for each in own] == [(1, 1.0), (2, 0.5)]
    weights = [each for each in made.weights() if (each["client"], each["round"]) == ("road", 1)]
    found = [(each["part"], each["task"], each["layer"], each["weight"]) for each in weights]
    assert found == [("encoder", "", 0, 0.1), ("decoder", "semseg", 1, 0.1), ("decoder", "semseg", 2, 0.2)]


@pytest.mark.parametrize("table", ["scores", "history", "weights"])
def test_a_column_of_records_has_values_of_one_plain_type(table, made):
    """polars takes types from the first rows."""
    records = getattr(made, table)()
    assert {tuple(record) for record in records} == {tuple(records.columns)}
    types = {key: {type(record[key]) for record in records} for key in records.columns}
    assert all(len(found) == 1 and found < {str, int, float, bool} for found in types.values()), types


def test_records_are_written_as_csv_with_empty_fields_for_what_is_unknown_and_shortened_in_a_notebook(tmp_path):
    records = Records([{"a": 0.1, "b": ""}, {"a": float("nan"), "b": "x,y"}])
    assert records.to_csv(tmp_path / "table.csv") == 'a,b\n0.1,\n,"x,y"\n'
    assert (tmp_path / "table.csv").read_text("utf-8") == records.to_csv()
    assert "and 40 more rows" in Records({"number": n} for n in range(100))._repr_html_()


def test_a_finished_run_is_opened_again_and_another_is_refused(tmp_path):
    files = made_run(tmp_path)
    experiment = small()
    (tmp_path / "config.yaml").write_text(experiment.to_yaml(), "utf-8")
    assert fedhca2.run(experiment, tmp_path, quiet=True).folder == files.path
    with pytest.raises(UserError, match="different rounds"):
        fedhca2.run(small(rounds=9), tmp_path, quiet=True)
    with pytest.raises(UserError, match="new or empty"):
        fedhca2.run(experiment, tmp_path, quiet=True, exist_ok=False)


@pytest.mark.slow
def test_runs_side_by_side_and_scores_that_are_measured_again_are_the_same_and_a_run_goes_on(tmp_path):
    model = {"encoder": {"name": "swin_micro"}, "decoder_width": 8}  # which other processes know
    experiment = small(rounds=1, model=model)
    together = fedhca2.compare(experiment, "fedavg", tmp_path / "one", quiet=True)
    assert list(together.entries) == ["local", "fedavg"]
    apart = fedhca2.compare(experiment, ["fedavg"], tmp_path / "two", jobs=2, quiet=True)
    assert apart.table().to_csv() == together.table().to_csv()
    run = Run.open(tmp_path / "one" / "fedavg" / "seed-0")
    assert run.evaluate().clients == run.result.clients
    alone = fedhca2.run(experiment, tmp_path / "alone", quiet=True)
    assert fedhca2.resume(alone.folder, ["rounds=2"], quiet=True).result.rounds == 2


def test_objects_cannot_be_handed_to_other_processes(tmp_path):
    with pytest.raises(UserError, match=r"jobs: expected import paths .* got 'live:"):
        fedhca2.compare(small(rounds=1), [Method(encoder=Mean())], tmp_path, jobs=2, quiet=True)
