"""Compiling in several processes: what is taken for done."""

import json

import pytest
import torch

from fedhca2.clients import precompile
from small import clients, small


@pytest.mark.parametrize(("code", "done"), [(0, True), (1, False)])
def test_only_what_was_compiled_is_taken_for_done(code, done, tmp_path, monkeypatch):
    class Process:
        returncode = code

        def __init__(self, *args, **kwargs): ...

        def communicate(self, jobs):
            assert json.loads(jobs)

    monkeypatch.setenv(precompile.CACHE, str(tmp_path))
    monkeypatch.setattr(precompile.subprocess, "Popen", Process)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (precompile.ROOM, precompile.ROOM))
    experiment = small()
    precompile.precompile(experiment.model, list(clients(experiment).values()), torch.device("cuda"))
    assert any(tmp_path.iterdir()) == done
