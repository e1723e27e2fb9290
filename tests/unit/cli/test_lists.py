"""`fedhca2 runs`, `config show`, and the JSON of commands that list things."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.experiment import Experiment
from fedhca2.reports.variants import flat
from fedhca2.run_folder.folder import lock_folder
from fedhca2.run_folder.listing import list_runs
from fedhca2.run_folder.reader import RunFiles
from made_run import TASKS, made_run


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def as_json(*words):
    found = invoke(*words, "--json")
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.fixture
def folder(tmp_path):
    """A run of each state, one of them deeper, and a baseline that is no run of its own."""
    made_run(tmp_path / "a-finished", better=1.1)
    made_run(tmp_path / "deep" / "er" / "interrupted", finished=False)
    made_run(tmp_path / "failed", rounds=2, refused=[(name, "NaN") for name in TASKS])
    made_run(tmp_path / "a-finished" / "baseline", method="local")
    made_run(tmp_path / "unreadable")
    (tmp_path / "unreadable" / "result.json").write_text('{"method": 1, "clients": 5}')
    return tmp_path


def states(folder):
    return {Path(run["folder"]).name: run["state"] for run in as_json("runs", folder)}


def test_every_run_has_a_state(folder):
    assert states(folder) == {
        name: name.removeprefix("a-") for name in ("a-finished", "interrupted", "failed", "unreadable")
    }


def test_the_lock_tells_that_a_run_is_running(folder):
    lock = lock_folder(folder / "deep" / "er" / "interrupted")
    assert states(folder)["interrupted"] == "running"
    lock.release()


def test_a_list_has_method_rounds_and_gain(folder):
    run = next(run for run in as_json("runs", folder) if run["folder"].endswith("a-finished"))
    assert (run["method"], run["round"], run["rounds"], run["delta_m"]) == ("fedhca2", 3, 3, pytest.approx(10.0))


def test_the_table_has_a_row_for_each_run(folder):
    found = invoke("runs", folder).output
    assert all(state in found for state in ("finished", "interrupted", "failed", "unreadable", "+10.0%"))


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        (["runs", "."], ["deep/er/interrupted"]),
        (["watch", "--once", "a-finished"], ["│ road ", "│ home "]),
        (["config", "show", "demo", "--find", "warm-up"], ["training.schedule.warmup_epochs", "after the warm-up │"]),
        (["run", "demo", "--dry-run"], ["│ outdoor-semseg-1 ", "encoder (updates), decoder (updates) │"]),
        (["methods", "fedhca2"], ["local | average | recalibrate"]),
    ],
)
def test_a_pipe_gets_whole_lines_whatever_they_take(folder, monkeypatch, words, wanted):
    deep = folder / f"a folder {'with a long name ' * 10}"
    deep.mkdir()
    (folder / "deep").rename(deep / "deep")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = invoke(*words).output
    for text in wanted:
        assert text in lines
    assert "…" not in lines


def test_no_runs_are_no_error(tmp_path):
    assert invoke("runs", tmp_path).output == f"No runs in {tmp_path}\n"


def test_a_folder_that_is_not_there_is_one_line(tmp_path):
    found = invoke("runs", tmp_path / "nowhere")
    assert (found.exit_code, found.output) == (
        2,
        f"error: {tmp_path / 'nowhere'}: expected a folder of runs, got nothing\n",
    )


@pytest.mark.parametrize(
    "words", [["experiments"], ["methods"], ["methods", "fedhca2"], ["config", "show", "--find", "batch"]]
)
def test_lists_are_json(words):
    assert all(isinstance(entry, dict) for entry in as_json(*words))


def test_a_run_that_is_watched_is_json(folder):
    assert [run["state"] for run in as_json("watch", folder / "a-finished", "--once")] == ["finished"]


def test_settings_have_a_meaning():
    assert [setting["key"] for setting in as_json("config", "show") if not setting["meaning"]] == []


def test_settings_are_found_by_words():
    assert [setting["key"] for setting in as_json("config", "show", "--find", "warm-up", "--find", "epochs")] == [
        "training.schedule.warmup_epochs"
    ]


def test_every_setting_of_an_experiment_has_its_value():
    changed = as_json("config", "show", "demo", "--set", "method.c=0.3", "--set", "clients.0.epochs=4")
    found = {setting["key"]: (setting["value"], setting["default"]) for setting in changed}
    assert found["method.encoder.c"] == ("0.3", "0.4")
    assert found["clients.0.epochs"] == ("4", "null")
    assert found["data.indoor.train"] == ("120", "200")
    assert found["training.learning_rate"] == ("0.002", "0.0001")


def test_the_settings_of_an_experiment_are_what_a_run_writes_down():
    written = dict(flat(Experiment.load("demo").to_dict(), lists=True)).keys()
    shown = {setting["key"] for setting in as_json("config", "show", "demo")}
    assert sorted(key for key in written - {"method.name"} if key not in shown) == []


def test_settings_of_nothing_cannot_be_changed():
    found = invoke("config", "show", "--set", "rounds=3")
    assert (found.exit_code, found.output) == (2, "error: --set: expected an experiment, got none\n")


@pytest.mark.parametrize("file", ["config.yaml", "metrics.jsonl", "result.json"])
@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"event": "round"}\n', b"\xff\xfe", b"a: [", b'{"origin": 3}', b"[" * 10**5]
)
def test_a_damaged_run_is_listed(tmp_path, file, content):
    run = made_run(tmp_path)
    (run.path / file).write_bytes(content)
    assert len(list_runs(tmp_path)) == 1


def test_a_mistake_of_ours_is_not_called_a_damaged_run(tmp_path, monkeypatch):
    made_run(tmp_path)
    monkeypatch.setattr(RunFiles, "of", lambda self, kind: self.no_such_thing)
    with pytest.raises(AttributeError):
        list_runs(tmp_path)
