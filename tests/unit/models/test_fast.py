"""The faster formulas used on a GPU, compared on the CPU with the plain ones."""

import os
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch
from timm.models.swin_transformer import WindowAttention
from torch.nn import functional
from torch.testing import assert_close

from fedhca2.compiling import with_constants
from fedhca2.models import ModelConfig, build_model
from fedhca2.models.fast import AlignedAttention, TabledAttention, WeightsCastTogether, parts, use_fast_layers
from fedhca2.models.layers import resample
from fedhca2.models.multitask import Decoder, Head


def with_gradients(module, *inputs):
    """Output and gradients of all parameters, for an arbitrary loss."""
    module.zero_grad()
    output = module(*inputs)
    (output * torch.linspace(-1, 1, output.numel()).view(output.shape)).sum().backward()
    return output.detach(), [parameter.grad.clone() for parameter in module.parameters()]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(("window", "kind"), [(7, AlignedAttention), (4, TabledAttention)])
def test_quick_attention_is_attention(window, kind, masked):
    """Windows of an odd size are padded."""
    torch.manual_seed(0)
    attention = WindowAttention(16, num_heads=2, window_size=window)
    torch.nn.init.normal_(attention.relative_position_bias_table)
    positions = window**2
    windows = torch.randn(8, positions, 16)
    mask = torch.where(torch.rand(4, positions, positions) < 0.3, -100.0, 0.0) if masked else None
    expected = with_gradients(attention, windows, mask)
    use_fast_layers(attention, compile=False)
    assert type(attention) is kind
    assert_close(with_gradients(attention, windows, mask), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("classes", [1, 8, 21])
def test_a_head_with_padded_classes_is_the_head(classes):
    torch.manual_seed(0)
    head, decoded = Head(16, classes), torch.randn(2, 16, 4, 6)
    expected = with_gradients(head, decoded)
    use_fast_layers(head, compile=True)
    assert type(head[-1]) is not torch.nn.Conv2d
    assert_close(with_gradients(head, decoded), expected, rtol=1e-4, atol=1e-5)


def test_attention_as_one_kernel_is_attention():
    """With Triton's interpreter, which needs no GPU but has to be chosen before Triton is imported."""
    pytest.importorskip("triton")
    command = [sys.executable, "benchmarks/window_attention.py", "--check"]
    done = subprocess.run(command, env={**os.environ, "TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("size", [(14, 18), (28, 36), (7, 9), (13, 40)])
def test_upsampling_is_bilinear_interpolation(size):
    maps = torch.randn(2, 5, 7, 9, generator=torch.Generator().manual_seed(0))
    expected = functional.interpolate(maps, size=size, mode="bilinear", align_corners=False)
    assert_close(resample(maps, torch.Size(size)), expected, rtol=0, atol=1e-5)


class Written(Decoder):
    """The decoder as in the paper: project, upsample, concatenate, fuse."""

    def forward(self, features):
        size = features[0].shape[-2:]
        maps = [project(feature) for project, feature in zip(self.projections, features, strict=True)]
        maps = [functional.interpolate(m, size=size, mode="bilinear", align_corners=False) for m in maps]
        return functional.leaky_relu(self.norm(self.fuse(torch.cat(maps, dim=1))), negative_slope=0.01)


def test_fusing_before_enlarging_is_fusing_after_it():
    torch.manual_seed(0)
    decoder = Decoder([8, 16, 32, 64], width=8).double()
    features = [torch.randn(2, 8 * 2**i, 32 // 2**i, 48 // 2**i).double() for i in range(4)]
    actual = with_gradients(decoder, features)
    decoder.__class__ = Written
    assert_close(actual, with_gradients(decoder, features), rtol=1e-9, atol=1e-9)


def test_a_swin_transformer_is_compiled_by_stage_and_shift():
    model = build_model(ModelConfig(encoder={"name": "swin_mini"}), {"depth": 1}, (64, 64), seed=0, client="a")
    stages = [f"layers_{stage}{shift}" for stage in range(4) for shift in ("", " shifted")]
    assert sorted(parts(model)) == [*stages, "rest"]
    other = build_model(ModelConfig(encoder={"name": "resnet18"}), {"depth": 1}, (64, 64), seed=0, client="a")
    assert parts(other) == ["encoder", "rest"]


def bf16_step(encoder, frozen="", together=False):
    """Outputs, and the gradients of all parameters, of a model in mixed precision."""
    model = build_model(ModelConfig(encoder={"name": encoder}), {"depth": 1, "sal": 2}, (64, 64), seed=0, client="a")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(not (frozen and name.startswith(frozen)))
    image = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    mode = WeightsCastTogether(model.parameters(), torch.bfloat16) if together else nullcontext()
    with torch.autocast("cpu", torch.bfloat16), mode:
        outputs = model(image)
    assert not together or mode.copies
    sum(output.float().square().mean() for output in outputs.values()).backward()
    return outputs, [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("frozen", ["", "encoder."])
@pytest.mark.parametrize("encoder", ["swin_micro", "resnet18"])
def test_weights_that_are_cast_together_give_the_same_bits(encoder, frozen):
    expected, gradients = bf16_step(encoder, frozen)
    actual, other_gradients = bf16_step(encoder, frozen, together=True)
    assert_close(actual, expected, rtol=0, atol=0)
    assert_close(other_gradients, gradients, rtol=0, atol=0)


class InFullPrecision(torch.nn.Linear):
    """Switches autocast off, as some backbones do for a layer."""

    def forward(self, x):
        with torch.autocast("cpu", enabled=False):
            return super().forward(x.float())


def test_a_layer_without_autocast_keeps_its_weights():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), InFullPrecision(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        expected = model(torch.ones(2, 4))
        with WeightsCastTogether(model.parameters(), torch.bfloat16):
            assert model(torch.ones(2, 4)).equal(expected)
    assert expected.dtype == torch.float32


def test_a_constant_is_computed_once_only_in_a_block_with_constants():
    maps, constants = torch.randn(2, 5, 7, 9), {}
    with with_constants(constants):
        first, second = resample(maps, (14, 18)), resample(maps, (14, 18))
        assert len(constants) == 2  # one matrix for rows and one for columns
        for matrix in constants.values():
            matrix.zero_()
        assert not resample(maps, (14, 18)).any()
        assert_close(resample(maps, (21, 27)).mean(), maps.mean(), rtol=0, atol=0.2)
    assert first.equal(second)
    assert resample(maps, (14, 18)).equal(first)
