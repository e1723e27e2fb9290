"""The number of cores on systems that report a process's affinity, and on those that do not; waiting for a core."""

import os
import subprocess
import sys
from contextlib import ExitStack
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


def test_without_affinities_all_cores_are_usable(monkeypatch):
    before = os.sched_getaffinity(0)
    with monkeypatch.context() as patched:
        patched.delattr(os, "sched_getaffinity")
        patched.delattr(os, "sched_setaffinity")
        assert usable_cores() == list(range(os.cpu_count()))
        stay_on([0])
    assert os.sched_getaffinity(0) == before


def test_another_process_can_be_kept_on_cores_while_it_lives():
    before, core = os.sched_getaffinity(0), usable_cores()[-1]
    with subprocess.Popen(["sleep", "60"]) as process:
        stay_on([core], process.pid)
        assert os.sched_getaffinity(process.pid) == {core}
        process.kill()
    stay_on([core], process.pid)
    assert os.sched_getaffinity(0) == before


@pytest.fixture
def start(tmp_path):
    """Starts another process that waits for a core, of those of a folder."""
    with ExitStack() as stack:

        def started(folder=tmp_path):
            pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", WORK, str(folder)], **pipes))
            stack.callback(process.kill)
            return process

        yield started


def has_a_core(process, seconds=30):
    """Whether a process gets a core in this time."""
    there, _, _ = select([process.stdout], [], [], seconds)
    return bool(there) and process.stdout.readline() == "at work\n"


def test_only_as_many_processes_work_as_there_are_cores_and_who_ends_or_dies_leaves_its_core(start, tmp_path):
    at_work = [start() for _ in usable_cores()]
    assert all(map(has_a_core, at_work))
    waiting, other = start(), tmp_path / "other"
    assert not has_a_core(waiting, 2)
    at_work[0].communicate()  # ends its input
    assert has_a_core(waiting)
    waiting.kill()
    waiting.wait()
    assert has_a_core(start())
    other.mkdir()
    assert has_a_core(start(other))
