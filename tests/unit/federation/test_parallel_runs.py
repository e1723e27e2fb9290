import os
import signal
import subprocess
import sys
from time import monotonic, sleep

import pytest

from fedhca2.federation import parallel_runs
from fedhca2.federation.comparison_runs import ComparisonStopped, plan_runs
from fedhca2.federation.parallel_runs import RunProcess, log_file, run_in_parallel
from small_run import events, run_small, same_models, small

# A run's process does not know the tests' own encoder.
SWIN = {"encoder": {"name": "swin_micro", "drop_path": 0.2}, "decoder_width": 8}


class Notes:
    """Records which runs ended, and how many ran at once."""

    def __init__(self):
        self.ends, self.most = {}, 0

    def ended(self, run, seconds, fault):
        self.ends[run.name] = fault

    def looked(self, running, waiting):
        self.most = max(self.most, len(running))


def acting(fails=(), wait=""):
    """A `start` whose processes wait and then write a result or fail."""

    def start(run, cores):
        run.folder.mkdir(parents=True)
        log_file(run).touch()
        program = f"{wait}; print('error: no luck'); exit(2)" if run.name in fails else wait
        if run.name not in fails:
            program = f"{wait}; open({str(run.folder / 'result.json')!r}, 'w').write('{{}}')"
        command = [sys.executable, "-c", program.removeprefix("; ")]
        with log_file(run).open("w") as log:
            return RunProcess(run, cores, subprocess.Popen(command, stdout=log, text=True), monotonic())

    return start


@pytest.fixture
def runs(tmp_path):
    return plan_runs(small(), ["fedavg"], 2, tmp_path)


def test_a_failing_run_is_named_and_the_others_go_on(runs, monkeypatch):
    monkeypatch.setattr(parallel_runs, "start", acting(fails=["fedavg, seed 0"]))
    run_in_parallel(runs, 2, notes := Notes())
    assert notes.ends == {
        "local, seed 0": "",
        "local, seed 1": "",
        "fedavg, seed 0": "no luck",
        "fedavg, seed 1": "",
    }


def test_what_needs_a_local_run_that_failed_is_not_run(runs, monkeypatch):
    monkeypatch.setattr(parallel_runs, "start", acting(fails=["local, seed 1"]))
    faults = run_in_parallel(runs, 2, Notes())
    assert faults[runs[3].folder] == f"the Local run in {runs[1].folder} failed"


def test_no_more_run_at_once_than_asked(runs, monkeypatch):
    monkeypatch.setattr(parallel_runs, "start", acting(wait="import time; time.sleep(0.3)"))
    run_in_parallel(runs, 2, notes := Notes())
    assert notes.most == 2


def test_a_signal_is_passed_on_and_no_run_is_begun_after_it(runs, monkeypatch):
    monkeypatch.setattr(parallel_runs, "start", acting(wait="import time; time.sleep(60)"))

    class Impatient(Notes):
        def looked(self, running, waiting):
            if running and waiting:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ComparisonStopped):
        run_in_parallel(runs, 1, Impatient())
    assert not runs[1].folder.exists()


@pytest.mark.slow
def test_runs_side_by_side_equal_runs_of_their_own(tmp_path):
    runs = plan_runs(small(rounds=1, model=SWIN), ["fedhca2"], 1, tmp_path / "parallel")
    run_in_parallel(runs, 2, Notes())
    for run in runs:
        run_small(run.experiment, alone := tmp_path / run.experiment.method_name, baseline=run.baseline)
        assert same_models(run.folder, alone)
        assert events(run.folder) == events(alone)


@pytest.mark.slow
def test_a_run_ends_with_the_process_that_started_it(tmp_path):
    run = plan_runs(small(rounds=1000, model=SWIN), [], 1, tmp_path)[0]
    job = parallel_runs.start(run, sorted(os.sched_getaffinity(0))[:1])
    while not job.last_line.startswith("round 1"):
        assert job.process.poll() is None
        sleep(0.05)
    job.process.stdin.close()
    assert job.process.wait(60) == 128 + signal.SIGTERM
