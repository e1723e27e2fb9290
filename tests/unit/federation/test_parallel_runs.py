import json
import os
import signal
import subprocess
import sys
from time import monotonic, sleep
from types import SimpleNamespace

import pytest
import torch
from test_mps import install

from fedhca2.federation import parallel_runs
from fedhca2.federation.comparison_runs import ComparisonStopped, plan_runs
from fedhca2.federation.parallel_runs import ParallelWatcher, RunProcess, log_file, run_in_parallel, start
from fedhca2.run_folder.reader import RunFiles
from small_run import run_small, same_runs, small
from warm import Warm

pytestmark = pytest.mark.slow
# A run's process does not know the tests' own encoder.
SWIN = {"encoder": {"name": "swin_micro", "drop_path": 0.2}, "decoder_width": 8}
RESULT = {"name": "any", "method": "any", "rounds": 1, "seed": 0, "clients": {}, "delta_m_by_client": None}
RESULT["baseline"] = {"road": {"semseg": {"miou": 1.0}}}  # nothing to join


class Notes(ParallelWatcher):
    """Records how the GPU is shared, which runs ended, and how many ran at once."""

    def __init__(self):
        self.how, self.ends, self.most = "", {}, 0

    def began(self, how):
        self.how = how

    def ended(self, run, seconds, fault):
        self.ends[run.name] = fault

    def polled(self, running, waiting):
        self.most = max(self.most, len(running))


class Actors:
    """A `start` whose processes wait and then write a result, or end with another code."""

    def __init__(self, codes=(), wait=""):
        self.codes, self.wait, self.begun = dict(codes), wait, []

    def __call__(self, run, cores, environment):
        self.begun.append((run.name, list(cores), environment))
        run.folder.mkdir(parents=True, exist_ok=True)
        result = f"open({str(run.folder / 'result.json')!r}, 'w').write({json.dumps(RESULT)!r})"
        code = self.codes.pop(run.name, 0)
        end = f"raise SystemExit({code})" if code > 0 else f"import os; os.kill(os.getpid(), {-code})"
        outcome = f"print('error: no luck'); {end}" if code else result
        program = f"{self.wait or 'pass'}; {outcome}"
        with log_file(run).open("w") as log:
            process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=log, text=True)
        return RunProcess(run, process, monotonic(), cores, environment.get("CUDA_VISIBLE_DEVICES", ""))


def act(monkeypatch, **how):
    monkeypatch.setattr(parallel_runs, "start", actors := Actors(**how))
    return actors


@pytest.fixture
def runs(tmp_path):
    return plan_runs(small(), ["fedavg"], 2, tmp_path)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """Two GPUs, as nvidia-smi tells it, and MPS. Neither program can run here: these stand in."""
    (folder := tmp_path / "bin").mkdir()
    install(folder, monkeypatch, "print('0, GPU-0a\\n1, GPU-1b')", "nvidia-smi")
    install(folder, monkeypatch, "")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(parallel_runs, "choose_devices", lambda names: [torch.device("cuda")])
    monkeypatch.setattr(parallel_runs, "usable_cores", lambda: list(range(8)))


@pytest.mark.parametrize("failing", ["fedavg, seed 0", "local, seed 1"])  # nothing waits for Local or fails with it
def test_a_failing_run_is_named_and_the_others_go_on(runs, monkeypatch, failing):
    act(monkeypatch, codes={failing: 2})
    faults = run_in_parallel(runs, 4, notes := Notes())
    assert notes.ends == {run.name: "no luck" if run.name == failing else "" for run in runs}
    assert (notes.most, [folder.parent.name for folder in faults]) == (4, [failing.partition(",")[0]])


def test_no_more_run_at_once_than_asked(runs, monkeypatch):
    act(monkeypatch, wait="import time; time.sleep(0.3)")
    run_in_parallel(runs, 2, notes := Notes())
    assert notes.most == 2


def test_a_signal_is_passed_on_and_no_run_is_begun_after_it(runs, monkeypatch):
    act(monkeypatch, wait="import time; time.sleep(60)")

    class Impatient(Notes):
        def polled(self, running, waiting):
            if running and waiting:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ComparisonStopped):
        run_in_parallel(runs, 1, Impatient())
    assert not runs[1].folder.exists()


def test_runs_share_the_cores(tmp_path, monkeypatch, gpu):
    actors = act(monkeypatch, wait="import time; time.sleep(1)")
    run_in_parallel(plan_runs(small(), ["fedavg"], 4, tmp_path), 8, notes := Notes())
    assert notes.most == 8
    assert sorted(cores for _, cores, _ in actors.begun) == [[core] for core in range(8)]


def test_runs_are_spread_over_the_gpus_one_on_each_by_default(runs, monkeypatch, gpu):
    actors = act(monkeypatch, wait="import time; time.sleep(0.3)")
    run_in_parallel(runs, None, notes := Notes())
    assert (notes.most, notes.how) == (2, "")
    assert [environment for *_, environment in actors.begun[:2]] == [
        {"CUDA_VISIBLE_DEVICES": "GPU-0a"},
        {"CUDA_VISIBLE_DEVICES": "GPU-1b"},
    ]


def test_runs_use_mps_on_request(runs, monkeypatch, gpu):
    actors = act(monkeypatch)
    run_in_parallel(runs[:1], 2, notes := Notes(), mps=True)
    assert notes.how == "with MPS"
    assert {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"} < set(actors.begun[0][2])


def test_runs_side_by_side_equal_runs_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel_runs, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Warm}))
    runs = plan_runs(small(rounds=1, model=SWIN), ["fedhca2"], 1, tmp_path / "parallel")
    run_in_parallel(runs, None, Notes())
    for run in runs:
        run_small(run.experiment, alone := tmp_path / run.experiment.method_name, baseline=run.baseline)
        assert same_runs(run.folder, alone)
        other = {"seconds", "origin", "device"}  # the last is named with its threads
        together, apart = (RunFiles(folder).outcome.model_dump(exclude=other) for folder in (run.folder, alone))
        assert together == apart


def test_a_run_ends_with_the_process_that_started_it(tmp_path, monkeypatch):
    run = plan_runs(small(rounds=1000, model=SWIN), [], 1, tmp_path)[0]
    monkeypatch.setattr(subprocess, "Popen", Warm)
    job = start(run, sorted(os.sched_getaffinity(0))[:1], {})
    while not job.last_line.startswith("round 1"):
        assert job.process.poll() is None
        sleep(0.05)
    job.process.stdin.close()
    assert job.process.wait(60) == 128 + signal.SIGTERM
