"""`fedhca2 runs`, `methods`, `config show`, and the JSON of commands that list things."""

from pathlib import Path

import pytest

from command import as_json, invoke, printed, refused
from fedhca2.experiment import Experiment
from fedhca2.methods import METHODS, components_of
from fedhca2.reports.variants import flatten
from fedhca2.run_folder.folder import lock_folder
from fedhca2.run_folder.listing import list_runs
from fedhca2.run_folder.reader import RunFiles
from made_run import TASKS, made_run


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


def test_every_run_has_a_state_of_which_a_lock_tells_that_it_is_running(folder):
    names = ("a-finished", "interrupted", "failed", "unreadable")
    assert states(folder) == {name: name.removeprefix("a-") for name in names}
    assert [run["state"] for run in as_json("watch", folder / "a-finished", "--once")] == ["finished"]
    lock = lock_folder(folder / "deep" / "er" / "interrupted")
    assert states(folder)["interrupted"] == "running"
    lock.release()


def test_a_list_has_method_rounds_and_gain_and_the_table_a_row_for_each_run(folder):
    run = next(run for run in as_json("runs", folder) if run["folder"].endswith("a-finished"))
    assert (run["method"], run["round"], run["rounds"], run["delta_m"]) == ("fedhca2", 3, 3, pytest.approx(10.0))
    table = printed("runs", folder)
    assert all(state in table for state in ("finished", "interrupted", "failed", "unreadable", "+10.0%"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["runs", "."], ["deep/er/interrupted"]),
        (["watch", "--once", "a-finished"], ["│ road ", "│ home "]),
        (["config", "show", "demo", "--find", "warm-up"], ["training.schedule.warmup_epochs", "after the warm-up │"]),
        (["run", "demo", "--dry-run"], ["│ outdoor-semseg-1 ", "encoder (updates), decoder (updates) │"]),
        (["methods", "fedhca2"], ["local | average | recalibrate"]),
    ],
)
def test_a_pipe_gets_whole_lines_of_any_length(folder, monkeypatch, words, expected):
    deep = folder / f"a folder {'with a long name ' * 10}"
    deep.mkdir()
    (folder / "deep").rename(deep / "deep")
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)
    lines = invoke(*words).output
    for text in expected:
        assert text in lines
    assert "…" not in lines


def test_no_runs_are_no_error_but_a_folder_that_is_not_there_is_one_line(tmp_path):
    assert printed("runs", tmp_path) == f"No runs in {tmp_path}\n"
    assert refused("runs", tmp_path / "no") == f"error: {tmp_path / 'no'}: expected a folder of runs, got nothing\n"


@pytest.mark.parametrize(
    "words", [["experiments"], ["methods"], ["methods", "fedhca2"], ["config", "show", "--find", "batch"]]
)
def test_lists_are_json(words):
    assert all(isinstance(entry, dict) for entry in as_json(*words))


def page(*words):
    return printed("methods", *words, env={"COLUMNS": "80"}).splitlines()


def test_methods_are_listed_with_their_reference_and_settings_with_bounds():
    lines = page()
    assert max(len(line.rstrip()) for line in lines) <= 80
    for name, method in METHODS.items():
        assert any(line.startswith(name) and method.reference in line for line in lines)
    row = next(line for line in page("fedprox") if line.strip().startswith("mu"))
    assert row.split(maxsplit=4)[:4] == ["mu", "0.01", "≥", "0"]
    assert "strength of the pull" in row
    assert "Did you mean 'fedhca2'?" in refused("methods", "fedhca3")


@pytest.mark.parametrize("name", METHODS)
def test_a_method_s_page_has_every_setting_with_a_meaning_in_80_columns(name):
    parts = [type(part).model_fields for part in components_of(METHODS[name]).values()]
    fields, lines = [(key, field) for part in parts for key, field in part.items() if key != "kind"], page(name)
    assert {key for key, _ in fields} <= {line.split()[0] for line in lines if line.startswith("  ") and line.strip()}
    assert [key for key, field in fields if not field.description] == []
    assert max(len(line.rstrip()) for line in lines) <= 80


def test_experiments_and_settings_which_have_a_meaning_are_found_by_words():
    output = printed("experiments", "table", "5", "local")
    assert ("fedhca2/table5/local" in output, "fedhca2/table1/fedavg" in output) == (True, False)
    assert [setting["key"] for setting in as_json("config", "show") if not setting["meaning"]] == []
    matches = as_json("config", "show", "--find", "warm-up", "--find", "epochs")
    assert [setting["key"] for setting in matches] == ["training.schedule.warmup_epochs"]


def test_every_setting_of_an_experiment_has_its_value_also_those_that_a_run_writes_down():
    changed = as_json("config", "show", "demo", "--set", "method.c=0.3", "--set", "clients.0.epochs=4")
    values = {setting["key"]: (setting["value"], setting["default"]) for setting in changed}
    assert values["method.encoder.c"] == ("0.3", "0.4")
    assert values["clients.0.epochs"] == ("4", "null")
    assert values["data.indoor.train"] == ("120", "200")
    assert values["training.learning_rate"] == ("0.002", "0.0001")
    written = dict(flatten(Experiment.load("demo").to_dict(), lists=True)).keys()
    assert sorted(written - {"method.name"} - values.keys()) == []
    assert refused("config", "show", "--set", "rounds=3") == "error: --set: expected an experiment, got none\n"


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
