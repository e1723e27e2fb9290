"""The number of cores on systems that report a process's affinity, and on those that do not; turns at them."""

import os
import signal
import subprocess
import sys
from select import select

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
def start(tmp_path):
    """Starts another process that waits for a core, of those of a folder."""
    processes = []

    def started(folder=tmp_path):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        processes.append(subprocess.Popen([sys.executable, "-c", WORK, str(folder)], **pipes))
        return processes[-1]

    yield started
    for process in processes:
        process.kill()
        process.communicate()


def has_a_core(process, seconds=30):
    """Whether a process gets a core in this time."""
    there, _, _ = select([process.stdout], [], [], seconds)
    return bool(there) and process.stdout.readline() == "at work\n"


@pytest.fixture
def at_work(start):
    """As many processes as there are cores, which all have one."""
    processes = [start() for _ in usable_cores()]
    assert all(map(has_a_core, processes))
    return processes


def test_as_many_work_as_there_are_cores(at_work, start):
    waiting = start()
    assert not has_a_core(waiting, 2)
    at_work[0].communicate()  # ends its input
    assert has_a_core(waiting)


def test_a_process_that_dies_leaves_its_core(at_work, start):
    at_work[0].send_signal(signal.SIGKILL)
    at_work[0].wait()
    assert has_a_core(start())


def test_others_with_another_folder_do_not_count(at_work, start, tmp_path):
    (tmp_path / "other").mkdir()
    assert has_a_core(start(tmp_path / "other"))
