"""Which compiled code counts as already there; compiling itself needs a GPU."""

import pytest
import torch

from fedhca2.clients import precompile

JOBS = [{"part": "encoder"}]


@pytest.mark.parametrize(("module", "what"), [(precompile, "__version__"), (torch, "__version__")])
def test_code_of_another_version_is_compiled_again(monkeypatch, module, what):
    before = precompile.mark_of(JOBS, "H200")
    monkeypatch.setattr(module, what, "another")
    assert precompile.mark_of(JOBS, "H200") != before


def test_code_for_another_gpu_or_job_is_compiled_again():
    marks = [precompile.mark_of(jobs, gpu) for jobs, gpu in ((JOBS, "H200"), (JOBS, "A100"), ([], "H200"))]
    assert len(set(marks)) == 3
