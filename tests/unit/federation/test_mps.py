"""Starting and stopping MPS's daemon, with a program that records how it was called: NVIDIA's needs a GPU."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from signal import SIGINT, SIGKILL
from time import monotonic, sleep

import pytest

from fedhca2.federation.parallel_runs import shared_gpus
from fedhca2.federation.stopping import stop_between_rounds

RECORDER = """
import json, os, sys
stdin = "" if "-d" in sys.argv else sys.stdin.read()
names = ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "CUDA_VISIBLE_DEVICES")
line = {"arguments": sys.argv[1:], "stdin": stdin, **{name: os.environ.get(name) for name in names}}
line["modes"] = [os.stat(os.path.dirname(line[name])).st_mode & 0o777 for name in names[:2]]
open(sys.argv[0] + ".calls", "a").write(json.dumps(line) + chr(10))
"""


@pytest.fixture
def calls(tmp_path, monkeypatch):
    """What the program was called with so far."""
    for name in ("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    install(tmp_path, monkeypatch, RECORDER)
    record = tmp_path / "nvidia-cuda-mps-control.calls"
    return lambda: [json.loads(line) for line in record.read_text().splitlines()] if record.exists() else []


def install(folder, monkeypatch, text, name="nvidia-cuda-mps-control"):
    program = folder / name
    program.write_text(f"#!{sys.executable}\n{text}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")


@pytest.mark.parametrize("fails", [False, True])
def test_the_daemon_is_started_and_stopped_also_when_the_runs_fail(tmp_path, calls, fails):
    with suppress(KeyError), shared_gpus(["GPU-1"], usual=tmp_path):
        assert [call["arguments"] for call in calls()] == [["-d"]]
        if fails:
            raise KeyError
    assert [(call["arguments"], call["stdin"]) for call in calls()[1:]] == [([], "quit\n")]


@pytest.mark.parametrize("signal", [SIGKILL, SIGINT])
def test_the_daemon_quits_when_its_process_is_killed(tmp_path, calls, signal):
    child = os.fork()
    if child == 0:
        try:
            with shared_gpus(["GPU-1"], usual=tmp_path), stop_between_rounds():
                os.kill(os.getpid(), signal)
                os.kill(os.getpid(), signal)  # a second Ctrl-C
        finally:
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal
    folder, patience = Path(calls()[0]["CUDA_MPS_PIPE_DIRECTORY"]), monotonic() + 10
    while folder.exists() and monotonic() < patience:
        sleep(0.02)
    assert ([call["stdin"] for call in calls()], folder.exists()) == (["", "quit\n"], False)


def test_runs_and_daemon_have_the_same_private_folders(tmp_path, calls):
    with shared_gpus(["GPU-1", "GPU-2"], usual=tmp_path) as (environment, how):
        assert environment == {name: calls()[0][name] for name in environment}
        assert environment["CUDA_VISIBLE_DEVICES"] == "GPU-1,GPU-2"
        assert calls()[0]["modes"] == [0o700, 0o700]
        assert how == "with MPS"
    assert not Path(environment["CUDA_MPS_PIPE_DIRECTORY"]).exists()


@pytest.mark.parametrize("name", ["CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", ""])
def test_a_daemon_that_runs_already_is_used_and_left_alone(tmp_path, calls, monkeypatch, name):
    if name:
        monkeypatch.setenv(name, str(tmp_path))
    else:
        (tmp_path / "nvidia-cuda-mps-control.pid").write_text(f"{os.getpid()}\n")
    with shared_gpus(["GPU-1"], usual=tmp_path) as (environment, _):
        assert environment == {}
    assert calls() == []


def test_a_dead_daemon_is_not_used(tmp_path, calls):
    (tmp_path / "nvidia-cuda-mps-control.pid").write_text("999999999\n")
    with shared_gpus(["GPU-1"], usual=tmp_path):
        assert len(calls()) == 1


@pytest.mark.parametrize("installed", [False, True])
def test_without_a_daemon_that_starts_runs_take_turns(tmp_path, monkeypatch, installed):
    monkeypatch.setenv("PATH", str(tmp_path))
    if installed:
        install(tmp_path, monkeypatch, "exit(4)")
    with shared_gpus(["GPU-1"], usual=tmp_path) as (environment, how):
        why = "its daemon did not start: exit code 4" if installed else "nvidia-cuda-mps-control is not installed"
        assert (environment, how) == ({}, f"without MPS ({why}): runs take turns")
