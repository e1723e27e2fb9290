import subprocess
from math import isnan

import pytest

from fedhca2.run_folder.result import origin, overall_gain, task_scores
from fedhca2.tasks import TASKS


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


def test_the_command_is_one_that_a_shell_takes(monkeypatch):
    monkeypatch.setattr("sys.argv", ["/usr/bin/fedhca2", "run", "my file.yaml"])
    assert origin()["command"] == "fedhca2 run 'my file.yaml'"


def test_the_commit_is_that_of_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert origin()["git"] is None
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], [*who, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    clean = origin()["git"]
    assert (len(clean["commit"]), clean["dirty"]) == (40, False)
    (tmp_path / "new.py").touch()
    assert origin()["git"] == clean | {"dirty": True}
