"""Some of the encoders in docs/encoders.md."""

from pathlib import Path

import pytest
import torch

from fedhca2.models import ModelConfig, build_model

PAGE = (Path(__file__).parents[3] / "docs" / "encoders.md").read_text("utf-8")


@pytest.mark.parametrize("name", ["ghostnet_050", "efficientvit_b0", "edgenext_xx_small"])
def test_a_known_encoder_trains(name):
    assert f"| `{name}` | " in PAGE.split("<summary>Families that do not work")[0]
    config = ModelConfig.model_validate({"encoder": {"name": name}})
    model = build_model(config, {"semseg": 3}, (64, 64), seed=0, client="")
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert [tuple(found.shape[-2:]) for found in model.encoder(image)] == [(16, 16), (8, 8), (4, 4), (2, 2)]
    model(image)["semseg"].square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
