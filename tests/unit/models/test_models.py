from itertools import combinations

import pytest
import torch
from timm.models.tiny_vit import Attention
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from fedhca2.models import Encoder, EncoderConfig, ModelConfig, MultiTaskModel, build_model
from fedhca2.params import Slot, flatten, layouts

PARTS = ("decoders", "heads")
MICRO = ModelConfig(encoder=EncoderConfig(name="swin_micro"))


@pytest.mark.parametrize(
    ("slot", "numbers", "tensors"),
    [(Slot("encoder"), 27_520_698, 177), (Slot("decoder", "semseg"), 175_776, 12), (Slot("head", "semseg"), 23_637, 6)],
)
def test_swin_t_has_the_papers_parameters(slot, numbers, tensors):
    with torch.device("meta"):
        layout = layouts(MultiTaskModel(ModelConfig(), {"semseg": 21}, (512, 512)))[slot]
    assert (layout.numel, len(layout.names)) == (numbers, tensors)
    if slot.part == "decoder":
        assert layout.layers == (*(f"projections.{i}" for i in range(4)), "fuse", "norm")


def test_every_parameter_belongs_to_one_slot_and_running_statistics_are_none():
    model = build_model(MICRO, {"semseg": 5, "depth": 1}, (32, 32), seed=0, client="a")
    assert set(model.slots()[Slot("decoder_norms", "semseg")]) == {"norm.running_mean", "norm.running_var"}
    in_slots = [id(p) for slot, part in model.slots().items() if "norms" not in slot.part for p in part.values()]
    assert sorted(in_slots) == sorted(map(id, model.parameters()))


def built(client, seed=0, config=MICRO):
    model = build_model(config, {"semseg": 5}, (32, 32), seed=seed, client=client)
    return {slot: flatten(part, layouts(model)[slot]) for slot, part in model.slots().items()}


def test_common_decoders_and_heads_depend_on_the_task_alone():
    config = MICRO.model_copy(update={"common_start": ("decoder", "head")})
    one = build_model(config, {"semseg": 5}, (32, 32), client="a", seed=0)
    other = build_model(config, {"depth": 1, "semseg": 9}, (64, 32), client="b", seed=0)
    decoders, heads = ([getattr(model, part)["semseg"].state_dict() for model in (one, other)] for part in PARTS)
    assert_close(*decoders, rtol=0, atol=0)
    differ = [name for name in heads[0] if not torch.equal(heads[0][name], heads[1][name])]
    assert differ == ["2.weight", "2.bias"]  # which have as many channels as there are classes
    assert not torch.equal(other.decoders["semseg"].fuse.weight, other.decoders["depth"].fuse.weight)


def test_seed_and_weights_change_the_start_and_not_the_global_generator():
    scenes, before = ModelConfig(encoder=EncoderConfig(name="swin_micro", weights="scenes")), torch.get_rng_state()
    encoders = [each[Slot("encoder")] for each in (built("a"), built("a", seed=1), built("a", config=scenes))]
    assert not any(torch.equal(*pair) for pair in combinations(encoders, 2))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("frozen", [False, True])
def test_an_encoder_forgets_what_it_computed_from_its_weights_when_its_mode_is_set(monkeypatch, frozen):
    """Up to timm 1.0.29, a TinyViT does so only when training begins."""

    def train(self, mode=True):
        nn.Module.train(self, mode)
        if mode:
            self.attention_bias_cache = {}

    monkeypatch.setattr(Attention, "train", train)
    config = ModelConfig(encoder=EncoderConfig(name="tiny_vit_5m_224", frozen=frozen))
    encoder = build_model(config, {"semseg": 5}, (64, 64), seed=0, client="a").encoder.eval()
    image = torch.rand(1, 3, 64, 64)
    with torch.no_grad():
        before = encoder(image)[-1]
        for name, parameter in encoder.named_parameters():
            if "attention_biases" in name:
                parameter.copy_(torch.linspace(-2, 2, parameter.numel()).view_as(parameter))
        (encoder.hold_fixed if frozen else encoder.eval)()
        after = encoder(image)[-1]
    assert not torch.allclose(before, after, atol=1e-3)


@pytest.mark.parametrize(
    ("decoder", "head", "layers"),
    [("fcn", None, 3), ("fcn", "linear", 1), ("deeplab", None, 1), ("deeplab", "transposed", 3)],
)
def test_a_head_is_that_of_the_decoders_paper_unless_chosen(decoder, head, layers):
    config = ModelConfig.model_validate({"encoder": {"name": "swin_micro"}, "decoder": decoder, "head": head})
    model = build_model(config, {"semseg": 5}, (32, 32), seed=0, client="a").eval()
    convolutions = [layer for layer in model.heads.modules() if hasattr(layer, "kernel_size")]
    assert len(convolutions) == layers
    assert model(torch.zeros(2, 3, 32, 32))["semseg"].shape == (2, 5, 32, 32)


def encoder(size=(64, 64)):
    torch.manual_seed(0)
    return Encoder(EncoderConfig(name="swin_mini"), size).eval()


def test_an_encoder_takes_images_of_any_size_padded_to_whole_patches(rng):
    image = torch.randn(1, 3, 61, 90, generator=rng)
    padded = encoder((512, 512))(functional.pad(image, (0, 2, 0, 3)))
    assert_close(encoder((32, 32))(image), padded, rtol=0, atol=0)
    assert [tuple(map.shape[-2:]) for map in padded] == [(16, 23), (8, 12), (4, 6), (2, 3)]
