"""Compiling in several processes: which parts count as done."""

import pytest
import torch

from fedhca2.clients import precompile
from fedhca2.models import ModelConfig
from small import SMALL, clients, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)
MODEL = {"encoder": {"name": "swin_micro"}}


@pytest.fixture
def compile_all(tmp_path, monkeypatch):
    """Compiles for two clients, one with vectors; returns marks of finished parts, and all files beside them."""
    monkeypatch.setenv(precompile.CACHE, str(tmp_path))
    crowd = {"name": "crowd", "data": "outdoor", "tasks": ["things", "sal"]}
    built = clients(small(model=MODEL, tasks={"things": "multilabel"}, clients=[*SMALL["clients"], crowd]))

    def work(model):
        models = dict.fromkeys(("home", "crowd"), ModelConfig.model_validate(model))
        precompile.precompile(models, [built["home"], built["crowd"]], GPU)
        return list(tmp_path.glob("fedhca2-*")), [path for path in tmp_path.rglob("*") if path.is_file()]

    return work


def test_compiled_code_is_kept_and_not_made_again(compile_all):
    done, files = compile_all(MODEL)
    assert len(files) > len(done) == 1
    for path in {*files} - {*done}:
        path.unlink()
    assert compile_all(MODEL) == (done, done)


def test_what_could_not_be_compiled_is_not_taken_for_done(compile_all):
    done, _ = compile_all({"encoder": {"name": "nonsense"}})
    assert done == []
