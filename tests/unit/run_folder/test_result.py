"""A run's result: gains, where it comes from, and JSON that every program can read."""

import json
import subprocess
from math import inf, isnan, nan

import pytest

from command import parse_strictly, printed
from fedhca2.reports.comparison import gather
from fedhca2.reports.layouts import to_latex, to_markdown
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline, origin, overall_gain, task_scores
from fedhca2.run_folder.writer import RunFolder, read_baseline
from fedhca2.tasks import TASKS
from made_run import made_run
from small_run import small


@pytest.mark.parametrize(
    ("ours", "alone", "gain"),
    [
        ({"a": {"sal": {"max_f": 1.0}}}, {"a": {"sal": {"max_f": 0.0}}}, None),
        ({"a": {"sal": {"max_f": 3.0}}, "b": {"sal": {"max_f": 9.0}}}, {"a": {"sal": {"max_f": 2.0}}}, 50),
        ({"a": {"depth": {"rmse": 0.5}}}, {"a": {"depth": {"rmse": 1.0}}}, 50),  # lower is better
    ],
)
def test_the_gain_is_that_of_clients_that_were_evaluated_both_times(ours, alone, gain):
    assert overall_gain(ours, alone, TASKS, {"a": "one", "b": "one"}) == gain


def test_a_client_without_a_baseline_keeps_its_score_but_has_no_gain():
    (score,) = task_scores({"a": {"sal": {"max_f": 3.0}}}, {"b": {"sal": {"max_f": 2.0}}}, TASKS)
    assert (score.ours.value, isnan(score.gain)) == (3, True)


def test_the_commit_is_that_of_the_working_directory_and_the_command_one_that_a_shell_takes(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fedhca2", "run", "my file.yaml"])
    assert origin()["command"] == "fedhca2 run 'my file.yaml'"
    monkeypatch.chdir(tmp_path)
    assert origin()["git"] is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    clean = origin()["git"]
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "new.py").touch()
    assert origin()["git"] == clean | {"dirty": True}


def holed_run(path, method="fedhca2"):
    """A made run without Δm and without one client's scores."""
    made_run(path, method)
    result = parse_strictly((path / "result.json").read_text())
    for scores in (result["clients"], result["baseline"] or {}):
        if "road" in scores:
            scores["road"]["semseg"]["miou"] = None
    result["delta_m"] = result["delta_m_by_client"] = None
    (path / "result.json").write_text(json.dumps(result))
    lines = [parse_strictly(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    lines = [line | {"value": None} if line.get("client") == "road" and "value" in line else line for line in lines]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return RunFiles.open(path)


@pytest.mark.parametrize("value", [nan, inf, -inf])
def test_nan_and_infinities_are_written_as_null(tmp_path, value):
    folder = RunFolder.new(tmp_path / "run")
    folder.rewind(small())
    folder.events.log("metric", value=value)
    folder.finish({"clients": {"a": {"sal": {"max_f": value}}}})
    folder.close()
    assert parse_strictly((tmp_path / "run" / "metrics.jsonl").read_text())["value"] is None
    assert parse_strictly((tmp_path / "run" / "result.json").read_text())["clients"]["a"]["sal"]["max_f"] is None


def test_a_score_that_is_null_is_not_known(tmp_path):
    local, ours = (holed_run(tmp_path / method, method) for method in ("local", "fedhca2"))
    assert isnan(headline(TASKS["semseg"], ours.result.clients["road"]["semseg"]).value)
    printed("report", ours.path)
    assert "Δm is unknown" in (ours.path / "report.html").read_text("utf-8")
    printed("report", local.path, ours.path)
    comparison = gather([local, ours])
    assert "| — |" in to_markdown(comparison)
    assert "nan" not in to_markdown(comparison) + to_latex(comparison) + comparison.table().to_csv()
    shown = printed("watch", ours.path, "--once")
    assert ("—" in shown, "nan" in shown) == (True, False)


def test_a_run_with_a_null_score_can_be_a_baseline(tmp_path):
    holed_run(tmp_path, "local")
    (tmp_path / "config.yaml").write_text(small("local").to_yaml())
    assert isnan(read_baseline(tmp_path, small())["road"]["semseg"]["miou"])
