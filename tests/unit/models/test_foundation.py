"""Plain transformers, frozen backbones and adapters, and some of the encoders in docs/encoders.md."""

from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch.testing import assert_close

from fedhca2.clients import Training
from fedhca2.clients.training import Learner, set_mode
from fedhca2.data.batches import Batch
from fedhca2.models import Encoder, EncoderConfig, ModelConfig, build_model, fingerprint
from fedhca2.models.layers import resample
from fedhca2.params import Slot

PAGE = (Path(__file__).parents[3] / "docs" / "encoders.md").read_text("utf-8")
SIZE = (32, 48)
VIT = "test_vit"
ENCODER = Slot("encoder")


def encoder(name=VIT, size=SIZE, width=None, **options):
    return Encoder(EncoderConfig(name=name, **options), size, width)


def model(name=VIT, **options):
    return build_model(
        ModelConfig(encoder={"name": name, **options}, decoder_width=8), {"depth": 1}, SIZE, seed=0, client="a"
    )


def trained(network):
    """The tensors that one step changes."""
    learner = Learner(network, Training(batch_size=2))
    before = {name: value.clone() for name, value in network.state_dict().items()}
    rng = torch.Generator().manual_seed(0)
    image, depth = torch.randn(2, 3, *SIZE, generator=rng), torch.rand(2, 1, *SIZE, generator=rng) + 1
    batch = Batch(image, {"depth": depth})
    learner.train_epoch([batch, batch], 1e-2)
    return {name for name, value in network.state_dict().items() if not torch.equal(value, before[name])}


@pytest.mark.parametrize("size", [(32, 48), (30, 45), (17, 64)])
def test_a_plain_transformer_has_maps_at_four_strides_for_images_of_any_size(size):
    maps = encoder(size=size, width=8)(torch.zeros(2, 3, *size))
    assert [each.shape for each in maps] == [(2, 8, -(-size[0] // s), -(-size[1] // s)) for s in (4, 8, 16, 32)]


@pytest.mark.parametrize("stride", [4, 8, 16, 32])
def test_a_pyramid_keeps_positions_whatever_the_patch(stride):
    patch, length = 14, 140
    centres = (torch.arange(length / patch) + 0.5) * patch
    actual = resample(centres.expand(1, 1, 10, 10), [length // stride] * 2, stride / patch)[0, 0, 0]
    expected = (torch.arange(length // stride) + 0.5) * stride
    inside = (expected >= centres[0]) & (expected <= centres[-1])
    assert_close(actual[inside], expected[inside])


def test_adapters_change_nothing_at_first():
    image = torch.randn(2, 3, *SIZE, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    plain = encoder().eval()
    torch.manual_seed(0)
    adapted = encoder(adapters={"rank": 2}).eval()
    adapted.pyramid.load_state_dict(plain.pyramid.state_dict())
    assert all(one.equal(other) for one, other in zip(plain(image), adapted(image), strict=True))


def adapters_in(names):
    return {name.rpartition(".")[2] for name in names} & {"up", "down"}


@pytest.mark.parametrize(
    ("options", "sent", "changed"),
    [
        ({}, {"up", "down"}, {"up", "down"}),
        ({"share": "down"}, {"down"}, {"up", "down"}),
        ({"train": "up"}, {"up"}, {"up"}),
    ],
    ids=["LoRA", "FedSA-LoRA", "FFA-LoRA"],
)
def test_adapters_can_be_sent_and_trained_in_part(options, sent, changed):
    network = model(adapters={"rank": 2, **options})
    row = network.slots()[ENCODER]  # which also has what lies between backbone and decoders
    assert {name.rpartition(".")[2] if name.startswith("body.") else "" for name in row} == sent | {""}
    network.encoder.requires_grad_(True)
    for name, parameter in network.named_parameters():  # B starts at 0, which gives A no gradient
        if name.endswith(".up"):
            torch.nn.init.normal_(parameter)
    assert adapters_in(trained(network)) == changed


def test_training_leaves_a_frozen_backbone_and_its_statistics_as_they_are():
    network = model(adapters={"rank": 2})
    changed = trained(network)
    unchanged = {name for name in network.state_dict() if name.startswith("encoder.") and name not in changed}
    assert unchanged == set(network.fixed)
    set_mode(network, frozenset({"encoder"}))
    set_mode(network, frozenset())  # as after a method has trained the decoders first
    names = {name for name, _ in network.named_parameters()}
    assert {name for name, each in network.named_parameters() if not each.requires_grad} == names & set(network.fixed)
    network = model("test_resnet", frozen=True)
    assert not {name for name in trained(network) if name.startswith("encoder.")}
    assert {slot.part for slot in network.slots()} == {"decoder", "decoder_norms", "head"}  # it has no row


def test_a_saved_state_has_no_backbone_and_restores_the_rest():
    network = model(adapters={})
    learner = Learner(network, Training())
    state = {name: value.clone() for name, value in learner.tensors("personal").items()}
    assert not {f"personal/model/{name}" for name in network.fixed} & set(state)
    trained(network)
    learner.restore("personal", state)
    assert all(value.equal(state[name]) for name, value in learner.tensors("personal").items())


def test_equal_settings_give_equal_adapters_and_equal_fingerprints_of_backbones():
    one, other = model(adapters={}), model(adapters={})
    assert fingerprint(one) == fingerprint(other) != fingerprint(model()) == ""
    assert all(value.equal(other.slots()[ENCODER][name]) for name, value in one.slots()[ENCODER].items())


def test_weights_of_timms_transformer_are_loaded(tmp_path):
    theirs = timm.create_model(VIT)
    save_file(theirs.state_dict(), tmp_path / "vit.safetensors")
    ours = encoder(weights=str(tmp_path / "vit.safetensors")).eval()
    image = torch.randn(1, 3, 160, 160, generator=torch.Generator().manual_seed(0))
    expected = theirs.eval().forward_intermediates(image, indices=[-1], norm=False, intermediates_only=True)
    assert_close(ours.body(image), expected)


@pytest.mark.parametrize("name", ["ghostnet_050", "efficientvit_b0", "edgenext_xx_small", "densenet121", "repvit_m0_9"])
def test_an_encoder_of_the_page_trains(name):
    assert f"| `{name}` | " in PAGE.split("<summary>Families that do not work")[0]
    network = build_model(ModelConfig(encoder={"name": name}), {"semseg": 3}, (64, 64), seed=0, client="")
    image = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    assert [tuple(map.shape[-2:]) for map in network.encoder(image)] == [(16, 16), (8, 8), (4, 4), (2, 2)]
    network(image)["semseg"].square().mean().backward()
    assert all(p.grad is None or p.grad.isfinite().all() for p in network.parameters())


FAULTS = {
    "unknown": ({"name": "resnet1"}, r"unknown encoder 'resnet1'. Did you mean 'resnet\d+'"),
    "no paths to drop": ({"name": "densenet121", "drop_path": 0.1}, "expected paths that drop_path can drop"),
    "not dilated": (
        {"name": "swin_micro", "output_stride": 8},
        "encoder 'swin_micro': expected feature maps at strides",
    ),
    "no linear layers": ({"name": "test_resnet", "adapters": {}}, "expected linear layers for adapters"),
    "wrong strides": ({"name": "levit_128s"}, r"strides 4, 8, 16 and 32, or at a single one, got \[16, 32, 64\]"),
    "no maps": ({"name": "convmixer_768_32"}, "encoder 'convmixer_768_32': .*features_only not implemented"),
    "one size": ({"name": "mixer_b16_224"}, "encoder 'mixer_b16_224': .*dynamic_img_size"),
    "drops while frozen": ({"frozen": True, "drop_path": 0.1}, "drop_path: expected 0"),
    "A is shared and not trained": ({"adapters": {"share": "down", "train": "up"}}, "since A is shared"),
    "rank": ({"adapters": {"rank": 0}}, "greater than or equal to 1"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_encoder_that_cannot_be_is_refused_in_one_line(fault):
    settings, line = FAULTS[fault]
    with pytest.raises(ValueError, match=line):
        encoder(**settings)
