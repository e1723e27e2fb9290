"""Compiling in several processes: what is taken for done."""

import json

import pytest
import torch

from fedhca2.clients import precompile
from fedhca2.models.fast import REST, parts
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


def test_every_part_and_every_loss_is_compiled():
    experiment = small()
    client = clients(experiment)["home"]
    outputs = {"semseg": (5, "uint8"), "depth": (1, "float32")}
    jobs = precompile._jobs(client, experiment.model, (64, 64), outputs)
    assert {job["part"] for job in jobs} == {*parts(client.personal.model), precompile.INPUT, precompile.LOSS}
    assert [[*job["outputs"]] for job in jobs if job["part"] == precompile.LOSS] == [["semseg"], ["depth"]]
    assert jobs[0]["part"] == REST  # takes longest
