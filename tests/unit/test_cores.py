"""The number of cores on systems that report a process's affinity, and on those that do not; turns at them."""

import os
import signal
import subprocess
import sys

import pytest

from fedhca2.cores import stay_on, usable_cores

# Takes a core, says so, and keeps it until its input ends.
WORK = """
import sys
from pathlib import Path
from fedhca2.cores import one_per_core
with one_per_core(Path(sys.argv[1])):
    print("at work", flush=True)
    sys.stdin.read()
"""


def test_the_cores_that_the_system_allows():
    assert usable_cores() == sorted(os.sched_getaffinity(0))


def test_all_cores_where_the_system_does_not_say(monkeypatch):
    monkeypatch.delattr(os, "sched_getaffinity")
    assert usable_cores() == list(range(os.cpu_count()))


def test_nothing_happens_where_a_process_cannot_be_kept_on_cores(monkeypatch):
    before = os.sched_getaffinity(0)
    monkeypatch.delattr(os, "sched_setaffinity")
    stay_on([0])
    assert os.sched_getaffinity(0) == before


def test_another_process_can_be_kept_on_cores():
    core = usable_cores()[-1]
    with subprocess.Popen(["sleep", "60"]) as process:
        stay_on([core], process.pid)
        found = os.sched_getaffinity(process.pid)
        process.kill()
    assert found == {core}


def test_a_process_that_has_ended_is_left_alone():
    before = os.sched_getaffinity(0)
    process = subprocess.Popen(["true"])
    process.wait()
    stay_on(usable_cores()[:1], process.pid)
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def at_work(tmp_path):
    """Start another process that takes a core."""
    processes = []

    def start():
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, "-c", WORK, str(tmp_path)], **pipes))
        assert processes[-1].stdout.readline() == "at work\n"
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def got_a_core(folder, seconds):
    """Whether another process gets a core in this time."""
    with subprocess.Popen(
        [sys.executable, "-c", WORK, str(folder)], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        try:
            return process.wait(seconds) == 0
        except subprocess.TimeoutExpired:
            process.kill()
            return False


def test_as_many_work_as_there_are_cores(at_work, tmp_path):
    *_, last = [at_work() for _ in usable_cores()]
    assert not got_a_core(tmp_path, 2)
    last.communicate()  # ends its input
    assert got_a_core(tmp_path, 30)


def test_a_process_that_dies_leaves_its_core(at_work, tmp_path):
    first, *_ = [at_work() for _ in usable_cores()]
    first.send_signal(signal.SIGKILL)
    first.wait()
    assert got_a_core(tmp_path, 30)


def test_others_with_another_folder_do_not_count(at_work, tmp_path):
    for _ in usable_cores():
        at_work()
    (tmp_path / "other").mkdir()
    assert got_a_core(tmp_path / "other", 30)
