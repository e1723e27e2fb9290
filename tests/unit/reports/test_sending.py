import pytest
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.reports.tracking import Sending, Sinks, scalars
from fedhca2.run_folder.reader import RunFiles
from made_run import made_run
from small_run import CrashError, Silent, crash, resume_small, run_small, small


def written(folder):
    """Everything in TensorBoard's event files: {(tag, round): value}."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}


def logged(run):
    return {(s.tag, s.round): pytest.approx(s.value) for event in run.events for s in scalars(event)}


def test_a_sink_that_is_not_installed_is_one_line_before_the_run(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    done = CliRunner().invoke(app, ["run", "demo", "--out", str(tmp_path / "run"), "--wandb", "project"])
    assert (done.exit_code, "pip install 'fedhca2[wandb]'" in done.stderr) == (2, True)
    assert not (tmp_path / "run").exists()


def test_watching_sends_what_the_run_wrote_down(tmp_path):
    run = made_run(tmp_path / "run")
    CliRunner().invoke(app, ["watch", str(run.path), "--tensorboard", str(tmp_path / "board")])
    assert written(tmp_path / "board") == logged(run)


@pytest.mark.slow
def test_a_run_sends_while_it_goes_on_what_it_wrote_down(tmp_path):
    board = tmp_path / "run" / "board"  # in the run's own folder, which should be empty at first
    with Sending(Silent(), tmp_path / "run", Sinks(board, None)) as watcher:
        run_small(small(rounds=2), tmp_path / "run", watcher)
    assert written(board) == logged(RunFiles.open(tmp_path / "run"))


@pytest.mark.slow
def test_a_resumed_run_sends_all_its_rounds(tmp_path):
    with pytest.raises(CrashError):
        run_small(small(rounds=2), tmp_path / "run", Silent(at=1, do=crash))
    with Sending(Silent(), tmp_path / "run", Sinks(tmp_path / "board", None)) as watcher:
        resume_small(tmp_path / "run", watcher=watcher)
    assert written(tmp_path / "board") == logged(RunFiles.open(tmp_path / "run"))
