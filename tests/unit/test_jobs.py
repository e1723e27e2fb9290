import os
import signal
import subprocess
import sys
from time import monotonic

import pytest

from fedhca2.federation import jobs
from fedhca2.federation.cells import ComparisonStopped, plan_cells
from fedhca2.federation.jobs import Job, log_file, run_jobs
from small_run import events, run_small, same_models, small


class Notes:
    """Keeps which cells ended, and how many ran at once."""

    def __init__(self):
        self.ends, self.most = {}, 0

    def ended(self, cell, seconds, fault):
        self.ends[cell.name] = fault

    def looked(self, running, waiting):
        self.most = max(self.most, len(running))


def acting(fails=(), wait=""):
    """A `start` whose processes only write a result, or fail, after they have waited."""

    def start(cell, cores):
        cell.folder.mkdir(parents=True)
        log_file(cell).touch()
        program = f"{wait}; print('error: no luck'); exit(2)" if cell.name in fails else wait
        if cell.name not in fails:
            program = f"{wait}; open({str(cell.folder / 'result.json')!r}, 'w').write('{{}}')"
        command = [sys.executable, "-c", program.removeprefix("; ")]
        with log_file(cell).open("w") as log:
            return Job(cell, cores, subprocess.Popen(command, stdout=log, text=True), monotonic())

    return start


@pytest.fixture
def cells(tmp_path):
    return plan_cells(small(), ["fedavg"], 2, tmp_path)


def test_a_failing_cell_is_named_and_the_others_go_on(cells, monkeypatch):
    monkeypatch.setattr(jobs, "start", acting(fails=["fedavg, seed 0"]))
    run_jobs(cells, 2, notes := Notes())
    assert notes.ends == {
        "local, seed 0": "",
        "local, seed 1": "",
        "fedavg, seed 0": "no luck",
        "fedavg, seed 1": "",
    }


def test_what_needs_a_local_run_that_failed_is_not_run(cells, monkeypatch):
    monkeypatch.setattr(jobs, "start", acting(fails=["local, seed 1"]))
    faults = run_jobs(cells, 2, Notes())
    assert faults[cells[3].folder] == f"the Local run in {cells[1].folder} failed"


def test_no_more_run_at_once_than_asked(cells, monkeypatch):
    monkeypatch.setattr(jobs, "start", acting(wait="import time; time.sleep(0.3)"))
    run_jobs(cells, 2, notes := Notes())
    assert notes.most == 2


def test_a_signal_is_passed_on_and_no_cell_is_begun_after_it(cells, monkeypatch):
    monkeypatch.setattr(jobs, "start", acting(wait="import time; time.sleep(60)"))

    class Impatient(Notes):
        def looked(self, running, waiting):
            if running and waiting:
                os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(ComparisonStopped):
        run_jobs(cells, 1, Impatient())
    assert not cells[1].folder.exists()


@pytest.mark.slow
def test_cells_side_by_side_equal_runs_of_their_own(tmp_path):
    cells = plan_cells(small(rounds=1), ["fedhca2"], 1, tmp_path / "jobs")
    run_jobs(cells, 2, Notes())
    for cell in cells:
        run_small(cell.experiment, alone := tmp_path / cell.experiment.method_name, baseline=cell.baseline)
        assert same_models(cell.folder, alone)
        assert events(cell.folder) == events(alone)


@pytest.mark.slow
def test_a_cell_ends_with_the_process_that_started_it(tmp_path):
    cell = plan_cells(small(rounds=1000), [], 1, tmp_path)[0]
    job = jobs.start(cell, sorted(os.sched_getaffinity(0))[:1])
    while not job.last_line.startswith("round 1"):
        assert job.process.poll() is None
    job.process.stdin.close()
    assert job.process.wait(60) == 128 + signal.SIGTERM
