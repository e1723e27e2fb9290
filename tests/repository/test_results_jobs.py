"""The list of runs behind the pages of results; making those that are missing, and recording them."""

import re
from importlib import import_module
from pathlib import Path

import pytest

from small import BRIEF

PAGES = sorted((Path(__file__).parents[2] / "docs").glob("results*.md"))


@pytest.fixture
def jobs(results):
    return import_module("results_jobs")


@pytest.fixture
def list_jobs(jobs, capsys):
    """List jobs as the command does."""

    def lines(*words):
        jobs.main(words)
        return capsys.readouterr().out.splitlines()

    return lines


def test_names_are_unique_and_plain(list_jobs):
    names = [line.split()[0] for line in list_jobs()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[\w.-]+", name) for name in names)


def test_parts_are_listed_in_the_order_of_their_weight(list_jobs):
    lines = list_jobs("catalogue", "photographs")
    assert lines[0] == "scenes_1c-local-s0 scenes_1c --set seed=0 --set method.name=local"
    assert lines[-1] == "real_1c-fedadagrad-s0 real_1c --set seed=0 --set method.name=fedadagrad"


def test_recorded_runs_can_be_left_out(list_jobs, results, finished_run, tmp_path, capsys):
    finished_run("a", 1, "method=fedavg", "seed=1")
    finished_run("b", 1, "method.c=0.2", "devices=[cpu]")
    records = ["--records", str(tmp_path / "records")]
    results.main([*records, "add", str(tmp_path / "runs")])
    capsys.readouterr()
    parts = ["catalogue", "sensitivity"]
    gone = {line.split()[0] for line in set(list_jobs(*parts)) - set(list_jobs(*parts, "--missing", *records))}
    assert gone == {"scenes_1c-fedavg-s1", "scenes_1c-fedhca2-c0.2-s0"}


def test_a_run_is_made_again_if_its_record_lacks_the_requested_rounds(list_jobs, results, finished_run, tmp_path):
    records = ["--records", str(tmp_path / "records")]
    finished_run("a", 1, "method=local")
    results.main([*records, "add", str(tmp_path / "runs")])
    assert "scenes_1c-local-traced-s0" in {line.split()[0] for line in list_jobs("traces", "--missing", *records)}
    finished_run("b", 1, "method=local", "evaluate_every=2")
    results.main([*records, "add", str(tmp_path / "runs")])
    missing = {line.split()[0] for line in list_jobs("catalogue", "traces", "--missing", *records)}
    assert not missing & {"scenes_1c-local-s0", "scenes_1c-local-traced-s0"}


@pytest.mark.slow
def test_every_listed_run_is_in_a_block_and_every_block_has_runs(results, jobs, list_jobs, finished_run, tmp_path):
    others = set(jobs.METHODS) - {"local", "pooled", "fedavg", "fedper"}
    catalogue = {f"{name}-{method}-s0" for name in (*jobs.SCENES, *jobs.MOLECULES) for method in others}
    for line in list_jobs():
        name, experiment, *options = line.split()
        if name in catalogue or not name.endswith("-s0"):  # four methods stand for the catalogue, and a seed for all
            continue
        finished_run(name, 1, *options[1::2], of=experiment)
    import_module("results_adding").add_runs([tmp_path / "runs"], tmp_path / "records")
    page = results.Page(results.Runs(import_module("results_records").read_records(tmp_path / "records")))
    text = page.fill("".join(file.read_text("utf-8") for file in PAGES))
    assert page.runs.unused() == {}
    assert re.findall(r"^\*`.*(?:was|were) not run.*", text, re.M) == []


@pytest.fixture
def run(results, jobs, monkeypatch, tmp_path):
    """Make the runs of the demo that are missing, with one seed and few images; returns the exit code."""
    monkeypatch.setattr(jobs, "DEMO_SEEDS", 1)
    settings = [word for setting in BRIEF for word in ("--set", setting)]
    records, out = ["--records", str(tmp_path / "records")], ["--out", str(tmp_path / "runs")]
    return lambda *more: results.main([*records, "run", "demo", *settings, *more, *out])


def list_recorded(folder):
    records = import_module("results_records").read_records(folder / "records")
    return {(record.name, record.method, record.seed) for record in records}


@pytest.mark.slow
def test_missing_runs_are_made_and_recorded_once(run, tmp_path, capsys):
    assert run("--only", "^earth-") == 0
    assert capsys.readouterr().out == ""
    assert run("--only", "^demo-") == 0
    assert list_recorded(tmp_path) == {("demo", "local", 0), ("demo", "fedhca2", 0)}
    assert "2/2  demo-" in capsys.readouterr().out
    assert run() == 0
    assert capsys.readouterr().out == ""


def test_runs_that_were_finished_but_not_recorded_are_not_made_again(run, finished_run, tmp_path, capsys):
    for method in ("local", "fedhca2"):
        settings = [*BRIEF, "baseline=false", f"method={method}"]
        finished_run(f"demo-{method}/seed-0", 1, *settings, of="demo")
    assert run() == 0
    assert len(list_recorded(tmp_path)) == 2
    assert capsys.readouterr().out == ""


def test_an_unknown_part_and_setting_are_refused(results, capsys):
    with pytest.raises(SystemExit):
        results.main(["run", "cruve"])
    assert "'cruve' is not a part (catalogue, curve, " in capsys.readouterr().err
    assert results.main(["run", "demo", "--set", "rouns=1"]) == 1
    assert "rouns: unknown key. Did you mean 'rounds'?" in capsys.readouterr().err
