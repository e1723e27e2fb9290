"""The records behind docs/results.md: adding runs, refusing some, and reading them back."""

import json
from importlib import import_module

import pytest

import fedhca2
from fedhca2.experiment import Experiment
from fedhca2.reports.comparison import gather
from fedhca2.reports.layouts import to_markdown
from fedhca2.run_folder.reader import RunFiles
from small import BRIEF

TINY = [*BRIEF, "clients.0.split=[sal, normals]", "clients.1.tasks=[depth]"]


@pytest.fixture
def records(results, tmp_path):
    """The folder of records."""
    return tmp_path / "records"


@pytest.fixture
def add(results, records, tmp_path):
    """Record the runs under tmp_path; return whether all were accepted."""
    return lambda *folders: (
        results.main(["--records", str(records), "add", *map(str, folders or [tmp_path / "runs"])]) == 0
    )


@pytest.fixture
def read(results, records):
    """Read all records, those of Local first."""
    return lambda: sorted(import_module("results_records").read_records(records), key=lambda run: run.method != "local")


def lines(records, experiment="scenes_1c"):
    return (records / f"{experiment}.jsonl").read_text("utf-8").splitlines()


def test_a_run_replaces_one_with_its_seed_method_and_settings_and_no_other(add, finished_run, read, records):
    for number, setting in enumerate(["seed=0", "seed=0", "seed=1", "method=fedper", "method.c=0.2", "rounds=20"]):
        add(finished_run(str(number), number, setting))
    assert sorted(record.scores["outdoor-sal"]["sal"]["max_f"] for record in read()) == [50.5, 51, 51.5, 52, 52.5]
    before = lines(records)
    add()  # all of them again
    assert lines(records) == before


@pytest.mark.parametrize(
    ("settings", "damage", "fault"),
    [
        ([], lambda folder: (folder / "result.json").unlink(), "expected a finished run"),
        (["name=mine"], lambda folder: None, "expected a run of a built-in experiment, got 'mine'"),
        ([], lambda folder: forget(folder / "result.json", "outdoor-sal"), "expected scores of every client"),
        (["model.encoder.weights=/home/me/own.safetensors"], lambda folder: None, "hold on every machine, got /home"),
    ],
)
def test_a_run_that_cannot_be_recorded_is_refused_by_name(add, finished_run, read, capsys, settings, damage, fault):
    damage(finished_run("bad", 1, *settings))
    finished_run("good", 1, "seed=1")
    assert not add()
    error = capsys.readouterr().err
    assert ("/bad: " in error, fault in error) == (True, True)
    assert [record.seed for record in read()] == [1]


def forget(file, client):
    result = json.loads(file.read_text("utf-8"))
    del result["clients"][client]
    file.write_text(json.dumps(result), "utf-8")


def test_a_folder_without_runs_is_refused(add, tmp_path, capsys):
    assert not add(tmp_path / "nothing")
    assert "nothing: expected runs in it" in capsys.readouterr().err


def test_where_data_and_weights_are_is_not_recorded(add, finished_run, records, read):
    files = ["data.pascal.root=/here/a", "data.nyud.root=/here/b", "model.encoder.weights=/here/c", "devices=[cpu]"]
    finished_run("real", 1, "rounds=21", *files, of="real_1c")
    assert add()
    assert "/here" not in "".join(lines(records, "real_1c"))
    assert read()[0].changes == {"rounds": 21}


def test_a_record_keeps_its_meaning_when_the_experiment_changes(add, finished_run, records, read):
    finished_run("a", 1)
    add()
    first, *rest = lines(records)
    earlier = json.loads(first)
    earlier["settings"]["training"]["learning_rate"] = 0.5
    (records / "scenes_1c.jsonl").write_text("\n".join([json.dumps(earlier), *rest]), "utf-8")
    assert read()[0].changes == {"training.learning_rate": 0.5}


@pytest.mark.parametrize(
    "settings",
    [
        ["method=fedpull", "method.decoder={kind: cross_attention}"],  # of another kind, with other keys
        ["method.decoder=null"],
        ["model.encoder.adapters={kind: lora, rank: 4}", "model.common_start=[decoder]"],
        ["data.outdoor.train=125", "clients.0.epochs=20", "seed=2"],
    ],
)
def test_a_record_has_all_settings_that_decide_its_scores(add, finished_run, read, settings):
    portable = import_module("results_runs").portable
    run = RunFiles(finished_run("a", 1, *settings))
    add()
    assert portable(read()[0].settings) == portable(run.settings)


@pytest.mark.slow
def test_records_of_real_runs_give_the_table_of_their_folders(add, read, tmp_path):
    folders = {method: tmp_path / "runs" / method for method in ("local", "fedper")}
    for method, folder in folders.items():
        fedhca2.run(Experiment.load("scenes_1c", [*TINY, f"method={method}"]), folder)
    assert add()
    expected = to_markdown(gather([RunFiles(folder) for folder in folders.values()]))
    assert "| fedper |" in expected
    assert to_markdown(gather(read())) == expected
