import json
import os
import signal
import subprocess
import sys
from time import monotonic, sleep
from types import SimpleNamespace

import pytest

from fedhca2.federation import parallel_runs, run_process
from fedhca2.federation.comparison_runs import ComparisonStopped, plan_runs
from fedhca2.federation.memory_room import GPU_FAULT, OUT_OF_MEMORY, Report
from fedhca2.federation.parallel_runs import run_in_parallel
from fedhca2.federation.run_process import RunProcess, log_file, memory_file, start
from small_run import events, run_small, same_models, small
from warm import Warm

pytestmark = pytest.mark.slow
GIB = 1 << 30
# A run's process does not know the tests' own encoder.
SWIN = {"encoder": {"name": "swin_micro", "drop_path": 0.2}, "decoder_width": 8}
RESULT = {"method": "any", "clients": {}, "baseline": {"road": {"semseg": {"miou": 1.0}}}}  # nothing to join


class Notes:
    """Records how the GPU is shared, which runs ended or were put back, and how many ran at once."""

    def __init__(self):
        self.how, self.ends, self.back, self.most = "", {}, [], 0

    def began(self, how):
        self.how = how

    def ended(self, run, seconds, fault):
        self.ends[run.name] = fault

    def put_back(self, run, why):
        self.back.append(run.name)

    def looked(self, running, waiting):
        self.most = max(self.most, len(running))


class Actors:
    """A `start` whose processes wait and then write a result, or end with another code."""

    def __init__(self, codes=(), wait="", takes=0):
        self.codes, self.wait, self.takes, self.begun = dict(codes), wait, takes, []

    def __call__(self, run, cores, threads, environment, free=None):
        self.begun.append((run.name, list(cores), threads, environment, free))
        run.folder.mkdir(parents=True, exist_ok=True)
        Report(self.takes, None, GIB // 100).write(memory_file(run))
        result = f"open({str(run.folder / 'result.json')!r}, 'w').write({json.dumps(RESULT)!r})"
        code = self.codes.pop(run.name, 0)
        end = f"raise SystemExit({code})" if code > 0 else f"import os; os.kill(os.getpid(), {-code})"
        outcome = f"print('error: no luck'); {end}" if code else result
        program = f"{self.wait or 'pass'}; {outcome}"
        with log_file(run).open("w") as log:
            process = subprocess.Popen([sys.executable, "-S", "-c", program], stdout=log, text=True)
        return RunProcess(run, cores, process, monotonic())


def act(monkeypatch, **how):
    monkeypatch.setattr(parallel_runs, "start", actors := Actors(**how))
    return actors


@pytest.fixture
def runs(tmp_path):
    return plan_runs(small(), ["fedavg"], 2, tmp_path)


@pytest.fixture
def gpu(tmp_path, monkeypatch):
    """A GPU with 30 GiB free, as nvidia-smi tells it, and MPS. Neither program can run here: these stand in."""
    (folder := tmp_path / "bin").mkdir()
    for name, text in (("nvidia-smi", "print('0, GPU-0a, 30720')"), ("nvidia-cuda-mps-control", "")):
        (folder / name).write_text(f"#!{sys.executable} -S\n{text}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr(parallel_runs, "gpus_of", lambda experiment: [["GPU-0a"]])
    monkeypatch.setattr(parallel_runs, "LOOK_EVERY", 0.1)
    monkeypatch.setattr(parallel_runs, "usable_cores", lambda: list(range(8)))
    monkeypatch.setattr(RunProcess, "move", lambda self, cores: None)  # there may be fewer cores here


def test_runs_go_on_while_nvidia_smi_fails(runs, monkeypatch, gpu, tmp_path):
    act(monkeypatch, takes=GIB)
    asked, smi = tmp_path / "asked", tmp_path / "bin" / "nvidia-smi"
    fails = f"import os, sys; sys.exit(9) if os.path.exists({str(asked)!r}) else open({str(asked)!r}, 'w')"
    smi.write_text(f"#!{sys.executable} -S\n{fails}\nprint('0, GPU-0a, 30720')\n")
    assert run_in_parallel(runs, 2, notes := Notes()) == {}
    assert len(notes.ends) == len(runs)


def test_a_failing_run_is_named_and_the_others_go_on(runs, monkeypatch):
    act(monkeypatch, codes={"fedavg, seed 0": 2})
    run_in_parallel(runs, 2, notes := Notes())
    assert notes.ends == {
        "local, seed 0": "",
        "local, seed 1": "",
        "fedavg, seed 0": "no luck",
        "fedavg, seed 1": "",
    }


def test_nothing_waits_for_local_or_fails_with_it(runs, monkeypatch):
    act(monkeypatch, codes={"local, seed 1": 2})
    assert list(run_in_parallel(runs, 4, notes := Notes())) == [runs[1].folder]
    assert (notes.most, notes.ends["fedavg, seed 1"]) == (4, "")


def test_no_more_run_at_once_than_asked(runs, monkeypatch):
    act(monkeypatch, wait="import time; time.sleep(0.3)")
    run_in_parallel(runs, 2, notes := Notes())
    assert notes.most == 2


def test_a_signal_is_passed_on_and_no_run_is_begun_after_it(runs, monkeypatch):
    act(monkeypatch, wait="import time; time.sleep(60)")

    class Impatient(Notes):
        def looked(self, running, waiting):
            if running and waiting:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ComparisonStopped):
        run_in_parallel(runs, 1, Impatient())
    assert not runs[1].folder.exists()


def test_on_a_gpu_the_first_run_shows_what_the_others_need(runs, monkeypatch, gpu):
    actors = act(monkeypatch, wait="import time; time.sleep(0.5)", takes=9 * GIB)
    run_in_parallel(runs, 8, notes := Notes())
    assert notes.most == 2  # of 10.5 GiB each on 30 GiB, not 3: 14.3 are kept for a method not seen yet
    assert [free for *_, free in actors.begun[:2]] == [30 * GIB, None]  # only the first is alone


def test_small_runs_fill_the_cores(tmp_path, monkeypatch, gpu):
    actors = act(monkeypatch, wait="import time; time.sleep(1)", takes=GIB)
    run_in_parallel(plan_runs(small(), ["fedavg"], 5, tmp_path), None, notes := Notes())
    assert notes.most == 8
    assert [threads for _, _, threads, _, _ in actors.begun[:8]] == [1] * 8
    assert actors.begun[0][1] == list(range(8))  # all cores while it is alone
    assert sorted(core for _, cores, *_ in actors.begun[1:8] for core in cores) == list(range(1, 8))


def test_runs_on_a_gpu_use_mps(runs, monkeypatch, gpu):
    actors = act(monkeypatch)
    run_in_parallel(runs[:1], None, notes := Notes())
    environment = actors.begun[0][3]
    assert notes.how == "with MPS"
    assert {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"} < set(environment)


def test_a_run_out_of_memory_goes_on_when_the_others_have_finished(runs, monkeypatch):
    actors = act(monkeypatch, codes={"local, seed 0": OUT_OF_MEMORY}, wait="import time; time.sleep(0.3)")
    faults = run_in_parallel(runs, 2, notes := Notes())
    assert (faults, notes.back) == ({}, ["local, seed 0"])
    assert [name for name, *_ in actors.begun][-1] == "local, seed 0"


def test_all_may_be_out_of_memory_at_once(runs, monkeypatch):
    act(monkeypatch, codes=dict.fromkeys((run.name for run in runs), OUT_OF_MEMORY))
    assert run_in_parallel(runs, 4, notes := Notes()) == {}
    assert sorted(notes.back) == sorted(run.name for run in runs)


def test_a_run_out_of_memory_on_its_own_has_failed(runs, monkeypatch):
    act(monkeypatch, codes={"local, seed 0": OUT_OF_MEMORY})
    assert run_in_parallel(runs[:1], 2, Notes()) == {runs[0].folder: "no luck"}


@pytest.mark.parametrize("code", [GPU_FAULT, -signal.SIGSEGV])
def test_runs_that_a_fault_on_the_gpu_ended_go_on_alone(code, tmp_path, monkeypatch, gpu):
    """Under MPS, one run's fault ends all that share the GPU."""
    monkeypatch.setattr(parallel_runs, "RECOVERY", 0.1)
    runs = plan_runs(small(), ["fedavg"], 3, tmp_path)
    actors = act(monkeypatch, codes={run.name: code for run in runs[1:4]}, wait="import time; time.sleep(0.3)")
    assert run_in_parallel(runs, 3, notes := Notes()) == {}
    assert sorted(notes.back) == sorted(run.name for run in runs[1:4])
    assert [name for name, *_ in actors.begun][-3:] == notes.back
    assert notes.most == 3


def test_nothing_starts_on_the_gpu_until_mps_serves_others_again(runs, monkeypatch, gpu):
    monkeypatch.setattr(parallel_runs, "RECOVERY", 2.0)
    actors = act(monkeypatch, codes={runs[1].name: GPU_FAULT}, wait="import time; time.sleep(0.2)")
    began = monotonic()
    assert run_in_parallel(runs, 2, Notes()) == {}
    assert monotonic() - began > 2
    assert len(actors.begun) == 5


def test_a_fault_on_the_gpu_of_a_run_on_its_own_is_its_own(runs, monkeypatch, gpu):
    act(monkeypatch, codes={"local, seed 0": GPU_FAULT})
    assert run_in_parallel(runs[:1], 2, Notes()) == {runs[0].folder: "no luck"}


def test_runs_side_by_side_equal_runs_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(run_process, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": Warm}))
    runs = plan_runs(small(rounds=1, model=SWIN), ["fedhca2"], 1, tmp_path / "parallel")
    run_in_parallel(runs, None, Notes())
    for run in runs:
        run_small(run.experiment, alone := tmp_path / run.experiment.method_name, baseline=run.baseline)
        assert same_models(run.folder, alone)
        assert events(run.folder) == events(alone)
        own_threads = {"device": "named with its threads"}
        assert result(run.folder) | own_threads == result(alone) | own_threads


def test_a_run_ends_with_the_process_that_started_it(tmp_path, monkeypatch):
    run = plan_runs(small(rounds=1000, model=SWIN), [], 1, tmp_path)[0]
    monkeypatch.setattr(subprocess, "Popen", Warm)
    job = start(run, sorted(os.sched_getaffinity(0))[:1], 1, {})
    while not job.last_line.startswith("round 1"):
        assert job.process.poll() is None
        sleep(0.05)
    job.process.stdin.close()
    assert job.process.wait(60) == 128 + signal.SIGTERM


@pytest.mark.parametrize(
    ("error", "code"),
    [
        ("CUDA out of memory. Tried to allocate 9.00 GiB", OUT_OF_MEMORY),
        ("CUDA error: device-side assert triggered", GPU_FAULT),
    ],
)
def test_a_run_says_by_its_exit_code_what_may_be_due_to_others(error, code, tmp_path, monkeypatch):
    run = plan_runs(small(model=SWIN), [], 1, tmp_path)[0]
    path = os.pathsep.join([str(_failing(tmp_path, error)), *sys.path])
    monkeypatch.setattr(subprocess, "Popen", Warm)
    job = start(run, sorted(os.sched_getaffinity(0))[:1], 1, {"PYTHONPATH": path})
    assert job.process.wait(60) == code
    assert (job.out_of_memory, job.failed_on_gpu) == (code == OUT_OF_MEMORY, code == GPU_FAULT)
    assert job.fault == error
    assert ("in run_one" in log_file(run).read_text()) == (code == GPU_FAULT)


def _failing(folder, error):
    """A folder with code that every process runs first, which makes runs fail as they do on a GPU."""
    (folder / "sitecustomize.py").write_text(
        "import fedhca2.federation.comparison_runs as runs\n"
        "def run_one(*_):\n"
        f"    raise RuntimeError({error!r})\n"
        "runs.run_one = run_one\n"
    )
    return folder


def result(folder):
    """A run's result, without times."""
    return {
        key: value
        for key, value in json.loads((folder / "result.json").read_text()).items()
        if key not in ("seconds", "origin")
    }
