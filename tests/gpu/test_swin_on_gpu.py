"""The maps of the released Swin transformer from a CUDA graph, and what building a model leaves alone."""

import pytest
import torch
from timm.models.swin_transformer import WindowAttention
from torch.testing import assert_close

from fedhca2.compiling import capture_graph
from fedhca2.models import ModelConfig, MultiTaskModel, build_model
from fedhca2.models.fast import AlignedAttention, FusedAttention, compile_parts, use_fast_layers
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
        use_fast_layers(model, compile=kind == "compiled")
        if kind == "compiled":
            compile_parts(model)
        graph = capture_graph(run)
        graph.replay()
        torch.cuda.synchronize()
    assert_released(maps["found"], size)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_as_one_kernel_has_the_gradients_of_attention(masked):
    torch.manual_seed(0)
    attention = WindowAttention(64, num_heads=2, window_size=7).cuda()
    torch.nn.init.normal_(attention.relative_position_bias_table)
    windows, factors = torch.randn(2, 72, 49, 64, device="cuda")
    mask = torch.where(torch.rand(36, 49, 49, device="cuda") < 0.3, -100.0, 0.0) if masked else None
    found = []
    for quick in (False, True):
        if quick:
            use_fast_layers(attention, compile=False)
            assert type(attention) is FusedAttention
        attention.zero_grad()
        (attention(windows, mask) * factors).sum().backward()
        found.append({name: parameter.grad.clone() for name, parameter in attention.named_parameters()})
    for name, expected in found[0].items():
        assert_close(found[1][name], expected, rtol=0, atol=1e-4 * float(expected.abs().max()), msg=name)


@pytest.mark.parametrize(("window", "channels"), [(14, 64), (7, 48)])
def test_attention_that_one_kernel_cannot_hold_is_padded(window, channels):
    attention = WindowAttention(channels, num_heads=2, window_size=window).cuda()
    use_fast_layers(attention, compile=False)
    assert type(attention) is AlignedAttention


def test_building_a_model_leaves_the_gpus_generator_alone():
    before = torch.cuda.get_rng_state()
    build_model(ModelConfig(), {"depth": 1}, (64, 64), seed=0, client="a")
    assert torch.equal(torch.cuda.get_rng_state(), before)
