"""Which runs may start beside others, and what the system tells about memory."""

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhca2.cores import host_free
from fedhca2.federation.gpu_sharing import gpus_free
from fedhca2.federation.memory_room import Memory, Report, Room, choose_places, expected, read_report

GIB = 1 << 30
PLENTY = Room(10**6, 10**6)
sizes = st.integers(0, 40)
memories = st.builds(Memory, sizes, sizes)
rooms = st.builds(Room, sizes, sizes, sizes, st.integers(0, 3))
queues = st.lists(st.none() | memories, max_size=8)


@given(queues, st.lists(rooms, min_size=1, max_size=3), rooms, st.integers(-1, 9))
def test_no_more_start_than_are_allowed_and_waiting(needs, gpus, host, most):
    assert len(choose_places(needs, gpus, host, most)) <= min(max(0, most), len(needs))


@given(st.lists(memories, max_size=8), rooms, rooms)
def test_what_starts_beside_others_fits_even_when_all_have_taken_what_they_need(needs, gpu, host):
    chosen = needs[: len(choose_places(needs, [gpu], host, 9))]
    together = chosen if gpu.active else chosen[1:]  # one that never fits may start alone
    if together:
        assert gpu.taken + sum(need.gpu for need in chosen) <= gpu.before
        assert host.taken + sum(need.host for need in chosen) <= host.before


@given(st.lists(memories, max_size=8), rooms, rooms)
def test_what_starts_beside_others_is_free_now(needs, gpu, host):
    chosen = needs[: len(choose_places(needs, [gpu], host, 9))]
    if chosen[0 if gpu.active else 1 :]:
        assert sum(need.gpu for need in chosen) <= gpu.now


@given(st.lists(memories, max_size=8), st.lists(rooms, min_size=1, max_size=3), rooms, sizes)
def test_more_memory_never_starts_fewer(needs, gpus, host, more):
    richer = [gpu._replace(before=gpu.before + more, now=gpu.now + more) for gpu in gpus[:1]]
    fits = [need for need in needs if need.gpu <= gpus[0].before and need.host <= host.before]
    assert len(choose_places(fits, richer, host, 9)) >= len(choose_places(fits, gpus[:1], host, 9))


@given(memories | st.none(), sizes)
def test_an_unknown_or_hopeless_run_starts_where_no_other_is(need, size):
    needs = [need if need is None else Memory(size + 1, 0)]
    assert choose_places(needs, [Room(size, 0)], PLENTY, 1) == [0]


@given(queues, st.integers(1, 4))
def test_before_anything_is_known_one_run_starts_on_each_gpu(needs, count):
    chosen = choose_places([None] * len(needs), [PLENTY] * count, PLENTY, 9)
    assert chosen == list(range(min(count, len(needs))))


def test_a_run_waits_for_memory_that_somebody_else_holds():
    assert choose_places([Memory(9, 1)], [Room(before=20, now=8)], PLENTY, 9) == []


def test_no_run_overtakes_a_larger_one():
    assert choose_places([Memory(15, 0), Memory(1, 0)], [Room(20, 20, taken=9, active=1)], PLENTY, 9) == []


def test_runs_are_spread_over_gpus():
    assert choose_places([Memory(1, 0)] * 4, [Room(9, 9)] * 2, PLENTY, 9) == [0, 1, 0, 1]


def test_sixteen_runs_of_9_gb_do_not_all_start_on_139_gib():
    needs = [expected("local", [("local", Report(9 * 10**9, 600 << 20, 3 * GIB))])] * 16
    assert len(choose_places(needs, [Room(139 * GIB, 139 * GIB)], Room(120 * GIB, 120 * GIB), 16)) == 13


def test_the_largest_run_of_a_method_counts():
    reports = [("fedavg", Report(4 * GIB, None, GIB)), ("fedavg", Report(9 * GIB, GIB, GIB))]
    assert expected("fedavg", reports).gpu == round(1.1 * 10 * GIB)


def test_a_context_is_never_believed_to_be_nothing():
    assert expected("local", [("local", Report(GIB, -3 * GIB, GIB))]).gpu == round(1.1 * 2 * GIB)


def test_without_a_gpu_only_the_machine_counts():
    assert expected("local", [("local", Report(0, None, GIB))]).gpu == 0


def program(folder, name, text):
    """A program of this name, first on the PATH."""
    (folder / name).write_text(f"#!{sys.executable}\n{text}")
    (folder / name).chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


@pytest.fixture
def three_gpus(tmp_path, monkeypatch):
    """What nvidia-smi prints for three GPUs; it cannot run here."""
    lines = [f"{number}, GPU-{number}{number}aa-bb, {1000 * (number + 1)}" for number in range(3)]
    monkeypatch.setenv("PATH", program(tmp_path, "nvidia-smi", f"print({chr(10).join(lines)!r})"))


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        (None, ["GPU-00aa-bb", "GPU-11aa-bb", "GPU-22aa-bb"]),
        ("2,0", ["GPU-22aa-bb", "GPU-00aa-bb"]),
        ("GPU-11", ["GPU-11aa-bb"]),
        ("1,7,0", ["GPU-11aa-bb"]),
        ("", []),
    ],
)
def test_gpus_are_listed_in_cudas_order(three_gpus, visible, found):
    assert list(gpus_free({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})) == found


@pytest.mark.parametrize("text", ["exit(9)", "print('0, GPU-00aa-bb, [N/A]')"])
def test_without_an_answer_no_gpu_is_listed(tmp_path, monkeypatch, text):
    monkeypatch.setenv("PATH", program(tmp_path, "nvidia-smi", text))
    assert gpus_free({}) == {}


def test_free_memory_is_in_bytes(three_gpus):
    assert gpus_free({"CUDA_VISIBLE_DEVICES": "1"}) == {"GPU-11aa-bb": 2000 << 20}


def test_a_container_may_have_less_memory_than_its_machine(tmp_path):
    (tmp_path / "proc").mkdir()
    (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal: 99 kB\nMemAvailable: 50 kB\n")
    (tmp_path / "sys/fs/cgroup/memory.max").write_text("30000\n")
    (tmp_path / "sys/fs/cgroup/memory.current").write_text("10000\n")
    (tmp_path / "sys/fs/cgroup/memory.stat").write_text("anon 7000\nactive_file 1000\ninactive_file 2000\n")
    assert host_free(tmp_path) == 23000  # what only caches files counts as free


def test_this_machine_has_free_memory():
    assert 0 < host_free() < sys.maxsize


def test_a_report_can_be_read_again(tmp_path):
    Report(reserved=3, context=None, host=5).write(tmp_path / "memory.json")
    assert read_report(tmp_path / "memory.json") == Report(reserved=3, context=None, host=5)


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "3", '{"reserved": 1}', '{"reserved": "1", "context": 1, "host": 1}', "[" * 200_000]
)
def test_a_damaged_report_says_nothing(tmp_path, text):
    (tmp_path / "memory.json").write_text(text)
    assert read_report(tmp_path / "memory.json") is None
