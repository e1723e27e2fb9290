"""Making the runs behind docs/results.md, and recording them."""

from importlib import import_module

import pytest

from small import BRIEF


@pytest.fixture
def run(results, monkeypatch, tmp_path):
    """Make the runs of the demo that are missing, with one seed and few images; returns the exit code."""
    monkeypatch.setattr(import_module("results_jobs"), "DEMO_SEEDS", 1)
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
