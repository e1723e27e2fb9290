"""Compiling in several processes: what counts as done, and what is traced meanwhile."""

import sys

import pytest
import torch

from fedhca2.clients import precompile
from small import SMALL, clients, small

JOBS = [{"part": "input", "size": [64, 64]}]
SIZES = {"outdoor": [32, 32], "indoor": [32, 64]}
COMPILER = """#!{python}
import json, sys
for job in json.load(sys.stdin)[:{most}]:
    print(job["part"])
sys.exit({code})
"""


@pytest.mark.parametrize("module", [precompile, torch])
def test_another_version_compiles_again_and_so_do_other_jobs_and_gpus(module, monkeypatch):
    before = [precompile.mark_of(jobs, gpu) for jobs, gpu in ((JOBS, "H200"), (JOBS, "A100"), ([], "H200"))]
    monkeypatch.setattr(module, "__version__", "another")
    assert len({*before, precompile.mark_of(JOBS, "H200")}) == 4


@pytest.fixture
def compiling(tmp_path, monkeypatch):
    """Compiles for two kinds of clients with a program that only says so; returns sizes that were traced, and marks."""
    built = clients(small(data={name: {**SMALL["data"][name], "size": size} for name, size in SIZES.items()}))
    models = {name: small().model for name in built}
    monkeypatch.setenv(precompile.CACHE, str(tmp_path))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "GPU")

    def work(most=None, code=0, room=2**40):
        program, traced = tmp_path / "python", []
        program.write_text(COMPILER.format(python=sys.executable, most=most, code=code))
        program.chmod(0o700)
        with monkeypatch.context() as here:
            here.setattr(torch.cuda, "mem_get_info", lambda _: (room, room))
            here.setattr(sys, "executable", str(program))
            here.setattr(precompile, "_trace", lambda device, jobs: traced.append(list(jobs[0]["size"])))
            precompile.precompile(models, list(built.values()), torch.device("cpu"))
        return traced, list(tmp_path.glob("fedhca2-*"))

    with torch._inductor.config.patch(compile_threads=8):
        yield work


@pytest.mark.parametrize(("room", "sizes"), [(2**40, [SIZES["outdoor"]]), (6 << 30, [])])
def test_a_kind_is_traced_while_the_next_is_compiled_if_the_gpu_has_room_and_nothing_twice(compiling, room, sizes):
    traced, marks = compiling(room=room)
    assert (traced, len(marks)) == (sizes, 1)  # the last kind is traced by its clients
    assert compiling(code=1)[0] == []
    assert torch._inductor.config.compile_threads == 1


@pytest.mark.parametrize("most", [0, 3, None])
def test_what_failed_is_not_taken_for_done(compiling, most):
    traced, marks = compiling(most=most, code=1)
    assert traced == ([SIZES["outdoor"]] if most is None else [])
    assert marks == []
    assert torch._inductor.config.compile_threads == 8
