"""Some of the encoders in docs/encoders.md, and some that do not fit."""

from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from fedhca2.cli import app
from fedhca2.models import ModelConfig, build_model

PAGE = (Path(__file__).parents[3] / "docs" / "encoders.md").read_text("utf-8")
WORKING, FAILING = PAGE.split("<summary>Families that do not work")


@pytest.mark.parametrize("name", ["ghostnet_050", "efficientvit_b0", "edgenext_xx_small"])
def test_a_known_encoder_trains(name):
    assert f"| `{name}` | " in WORKING
    config = ModelConfig.model_validate({"encoder": {"name": name}})
    model = build_model(config, {"semseg": 3}, (64, 64), seed=0, client="")
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert [tuple(found.shape[-2:]) for found in model.encoder(image)] == [(16, 16), (8, 8), (4, 4), (2, 2)]
    model(image)["semseg"].square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.slow
def test_an_encoder_that_does_not_fit_is_one_line(tmp_path):
    name = "gcvit_xxtiny"
    assert f"| `{name}` | " in FAILING
    done = CliRunner().invoke(
        app, ["run", "demo", "--set", f"model.encoder={{name: {name}}}", "--out", str(tmp_path / "out")]
    )
    assert (done.exit_code, done.output.count("\n")) == (2, 1), done.output
    assert not (tmp_path / "out").exists()
