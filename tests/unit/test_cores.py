"""The number of cores on systems that report a process's affinity, and on those that do not."""

import os
import subprocess

from fedhca2.cores import stay_on, usable_cores


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
