"""The maps of the released Swin transformer from a CUDA graph, and what building a model leaves alone."""

import pytest
import torch

from fedhca2.compiling import capture_graph
from fedhca2.models import ModelConfig, MultiTaskModel, build_model
from fedhca2.models.fast import compile_parts, quicken_attention
from released_swin import SIZES, assert_released, image_of, released_config

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("kind", ["plain", "captured", "compiled"])
@pytest.mark.parametrize("size", SIZES)
@torch.no_grad()
def test_maps_are_those_of_the_released_code(size, kind, tmp_path, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    config = ModelConfig(encoder=released_config(tmp_path, monkeypatch))
    model = MultiTaskModel(config, {"depth": 1}, (64, 64)).cuda()
    image, maps = image_of(size).cuda(), {}

    def run():
        maps["found"] = model.encoder(image)

    if kind == "plain":
        run()
    else:
        quicken_attention(model)
        if kind == "compiled":
            compile_parts(model)
        graph = capture_graph(run)
        graph.replay()
        torch.cuda.synchronize()
    assert_released(maps["found"], size)


def test_building_a_model_leaves_the_gpus_generator_alone():
    before = torch.cuda.get_rng_state()
    build_model(ModelConfig(), {"depth": 1}, (64, 64), seed=0, client="a")
    assert torch.equal(torch.cuda.get_rng_state(), before)
