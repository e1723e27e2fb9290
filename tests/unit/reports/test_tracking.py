"""TensorBoard, MLflow, W&B and trackers of one's own get what a run wrote down."""

import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlparse

import pytest
import yaml

from command import invoke, refused
from fedhca2.errors import UserError
from fedhca2.reports.tracking import Scalar, TrackedRun, Trackers, Wandb, scalars
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watchers
from made_run import made_run
from small_run import SETTINGS, CrashError, Silent, crash, resume_small, run_small, small


def watch(run, track):
    """Send a run to a tracker."""
    return invoke("watch", run, "--track", track)


def numbers_of(run):
    """Everything that a run wrote down: {(tag, round): value}."""
    numbers = {(s.tag, s.round): pytest.approx(s.value) for event in run.events for s in scalars(event)}
    gain = run.result and run.result.delta_m
    return numbers | ({} if gain is None else {("delta_m", run.rounds): pytest.approx(gain)})


def in_tensorboard(folder):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {(tag, e.step): e.value for tag in events.Tags()["scalars"] for e in events.Scalars(tag)}


class MLflowStore:
    """What a folder of MLflow's holds, read by MLflow itself."""

    def __init__(self, folder):
        from mlflow import MlflowClient

        self.client = MlflowClient(folder.as_uri())

    @property
    def runs(self):
        return self.client.search_runs([each.experiment_id for each in self.client.search_experiments()])

    def points(self):
        """Every point of the only run, as (tag, round, value)."""
        (run,) = self.runs
        points = [point for tag in run.data.metrics for point in self.client.get_metric_history(run.info.run_id, tag)]
        return [(point.key, point.step, point.value) for point in points]

    def files(self):
        (run,) = self.runs
        folder = Path(urlparse(run.info.artifact_uri).path)
        return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture
def store(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    return MLflowStore(tmp_path / "mlruns")


def test_tensorboard_gets_what_a_run_wrote_down(tmp_path):
    run = made_run(tmp_path / "run", better=1.1)
    watch(run.path, f"tensorboard={tmp_path / 'board'}")
    assert in_tensorboard(tmp_path / "board") == numbers_of(run)


def test_mlflow_gets_every_number_once_and_the_settings_as_parameters(tmp_path, store):
    run = made_run(tmp_path / "run", better=1.1)
    for _ in range(2):
        assert watch(run.path, f"mlflow={tmp_path / 'mlruns'}").exit_code == 0
    points = store.points()
    assert {(tag, step): value for tag, step, value in points} == numbers_of(run)
    assert len(points) == len(numbers_of(run))
    (sent,) = store.runs
    assert (sent.data.params["method.name"], sent.data.params["rounds"], sent.info.run_name) == ("fedhca2", "3", "run")


def test_wandb_gets_what_a_run_wrote_down(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    run, sent, log = made_run(tmp_path / "run", better=1.1), [], wandb.Run.log
    monkeypatch.setattr(wandb.Run, "log", lambda self, row: (sent.append(row), log(self, row)))
    assert watch(run.path, "wandb=project").exit_code == 0
    assert next(tmp_path.glob("wandb/offline-run-*/run-*.wandb")).stat().st_size > 1000
    assert {(tag, row["round"]): row[tag] for row in sent for tag in row.keys() - {"round"}} == numbers_of(run)


def test_wandb_gets_the_numbers_of_a_round_in_one_call(monkeypatch):
    """Without the package: its run is replaced by a list of calls."""
    calls = []
    run = SimpleNamespace(define_metric=lambda *_, **__: None, log=calls.append)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=lambda **_: run))
    tracker = Wandb("project")
    tracker.start(TrackedRun("run", "0", {}))
    tracker.log([Scalar("a", 1, 0.1), Scalar("a", 2, 0.2), Scalar("b", 1, 0.3)])
    assert calls == [{"a": 0.1, "b": 0.3, "round": 1}, {"a": 0.2, "round": 2}]


OWN = """
class Mine:
    def __init__(self, target): self.target = target
    def start(self, run): print("start", run.name, run.config["rounds"]); assert self.target != "stays shut"
    def log(self, numbers): print("log", len(numbers)); assert self.target != "breaks"
    def keep(self, files): print("keep", *files)
    def close(self, *, finished): print("close", finished)
class Other: pass
"""


@pytest.fixture
def own(tmp_path):
    """The path of a file with a tracker of one's own."""
    (tmp_path / "own.py").write_text(OWN)
    return tmp_path / "own.py"


def test_a_tracker_of_ones_own_gets_run_numbers_and_files(tmp_path, own, capsys):
    run = made_run(tmp_path / "run")
    with Trackers(run.path, [f"{own}:Mine=here"]) as trackers:
        trackers.start()
        trackers.send(run.events)
    numbers, files = f"log {len(numbers_of(run)) - 1}", "keep config.yaml result.json"
    assert capsys.readouterr().out.splitlines() == ["start run 3", numbers, "log 1", files, "close True"]


def test_a_tracker_that_breaks_is_named_and_gets_nothing_more(tmp_path, own):
    run = made_run(tmp_path / "run").path
    done = watch(run, f"{own}:Mine=breaks")
    assert done.exit_code == 1
    assert "AssertionError (own.py, line" in done.stderr
    assert f"send the rest later: fedhca2 watch {run} --track" in done.stderr
    assert "close" not in done.stdout


@pytest.mark.parametrize(
    ("track", "fault"),
    [
        ("mlflow", "expected NAME=TARGET, got 'mlflow'"),
        ("mflow=runs", "unknown tracker 'mflow'. Did you mean 'mlflow'? (tensorboard, wandb, mlflow); or path/to"),
        ("wandb=project", "wandb is not installed; run: pip install 'fedhca2[wandb]'"),
        ("tensorboard={file}", "expected a folder that can be written to, got {file}:"),
        ("mlflow={file}/below", "expected a folder that can be written to, got {file}:"),
        ("mlflow=/proc/none", "expected a folder that can be written to, got /proc:"),
        ("mlflow=sqlite:///{file}/below/a.db", "expected a folder that can be written to, got {file}:"),
        (f"tensorboard={'long' * 100}", "expected a folder that can be written to"),
        ("mlflow=nowhere://at.all", "unsupported URI 'nowhere://at.all'"),
        ("mlflow=http://127.0.0.1:9", "API request to http://127.0.0.1:9"),
        ("{own}:Other=here", "Other: expected a class"),
        ("{own}:Nothing=here", "got nothing of that name. (Mine)"),
    ],
)
@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_a_fault_is_one_line_before_the_run_has_a_folder(tmp_path, own, monkeypatch, track, fault, more):
    if "mlflow=" in track:
        pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setitem(sys.modules, "wandb", None)
    (file := tmp_path / "file").touch()
    (experiment := tmp_path / "small.yaml").write_text(yaml.safe_dump({**SETTINGS, "method": "local", "rounds": 1}))
    words = ["run", experiment, "--out", tmp_path / "run", "--track", track.format(file=file, own=own), *more]
    assert fault.format(file=file) in refused(*words)
    assert not (tmp_path / "run").exists()


def test_a_tracker_that_does_not_start_stops_the_run_and_says_how_to_continue(tmp_path, own):
    run, track = tmp_path / "run", f"{own}:Mine=stays shut"
    line = rf"--track {track}: AssertionError \(own.py, line 4\); the run has begun, .*fedhca2 resume"
    with pytest.raises(UserError, match=line), Trackers(run, [track]) as trackers:
        run_small(small(rounds=1), run, trackers)
    assert RunFiles(run).begun


@pytest.mark.slow
def test_a_run_sends_while_it_goes_on_what_it_wrote_down(tmp_path):
    board = tmp_path / "run" / "board"  # in the run's own folder, which should be empty at first
    with Trackers(tmp_path / "run", [f"tensorboard={board}"]) as trackers:
        run_small(small(rounds=2), tmp_path / "run", trackers)
    assert in_tensorboard(board) == numbers_of(RunFiles.open(tmp_path / "run"))


@pytest.mark.slow
def test_a_resumed_run_continues_its_run_in_mlflow(tmp_path, store):
    run, target = tmp_path / "run", f"mlflow={tmp_path / 'mlruns'}"
    with pytest.raises(CrashError), Trackers(run, [target]) as trackers:
        run_small(small(rounds=2), run, Watchers(trackers, Silent(1, crash)))
    assert [each.info.status for each in store.runs] == ["KILLED"]
    with Trackers(run, [target]) as trackers:
        resume_small(run, watcher=trackers)
    assert [each.info.status for each in store.runs] == ["FINISHED"]
    expected = {key: value for key, value in numbers_of(RunFiles.open(run)).items() if "seconds" not in key[0]}
    assert {(tag, step): value for tag, step, value in store.points() if "seconds" not in tag} == expected
    models = {f"models/{client}.safetensors" for client in ("road", "shop", "home")}
    assert store.files() == {"config.yaml", "result.json"} | models


def test_an_id_that_somebody_changed_is_one_line(tmp_path):
    run = made_run(tmp_path / "run")
    (run.path / "tracking.json").write_text('{"id": "\' OR 1 = 1"}')
    line = refused("watch", run.path, "--track", f"tensorboard={tmp_path / 'board'}")
    assert "expected 32 hexadecimal digits" in line


def test_two_runs_are_two_in_mlflow_also_with_long_settings(tmp_path, store):
    for name, changes in (("a", {"title": "x" * 9000, "devices": ["cpu"] * 200}), ("b", {})):
        run = made_run(tmp_path / name)
        run.config_file.write_text(yaml.safe_dump(yaml.safe_load(run.config_file.read_text()) | changes))
        assert watch(run.path, f"mlflow={tmp_path / 'mlruns'}").exit_code == 0
    runs = {run.info.run_name: run.data.params for run in store.runs}
    assert sorted(runs) == ["a", "b"]
    assert len(runs["a"]["devices"]) == 500
