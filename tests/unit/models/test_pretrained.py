import hashlib
import pickle
import socket

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn
from torch.testing import assert_close

from fedhca2.models import Encoder, EncoderConfig, pretrained
from fedhca2.models.config import SWIN_T
from fedhca2.models.pretrained import to_timm
from small import small

SIZE = (64, 64)


@pytest.fixture(autouse=True)
def _fresh():
    pretrained.timm_tensors.cache_clear()


def encoder(name="swin_micro", **options):
    return Encoder(EncoderConfig(name=name, **options), SIZE)


@pytest.fixture
def images(rng):
    return torch.randn(2, 3, *SIZE, generator=rng)


@pytest.fixture
def source():
    torch.manual_seed(1)
    source = encoder()
    for parameter in source.parameters():
        nn.init.normal_(parameter, std=0.1)
    return source


def as_trained(state):
    return {f"encoder.{name}": tensor for name, tensor in state.items()} | {"heads.semseg.0.bias": torch.zeros(3)}


def as_checkpoint(state):
    tensors = {f"backbone.{name}": tensor for name, tensor in state.items()}
    return {"state_dict": tensors | {"decode_head.conv_seg.weight": torch.zeros(150, 8)}, "meta": {"epoch": 1}}


@pytest.mark.parametrize(
    "named", [dict, as_trained, as_checkpoint], ids=["our names", "a trained model", "a checkpoint"]
)
def test_a_file_is_read_whatever_its_names(tmp_path, source, images, named):
    """Those of mmseg are in tests/golden/test_swin_maps.py."""
    save, name = (torch.save, "weights") if named is as_checkpoint else (save_file, "weights.safetensors")
    save(named(source.state_dict()), tmp_path / name)
    by_authors = to_timm({"model.layers.0.downsample.norm.bias": torch.ones(1), "model.norm.weight": torch.ones(2)})
    assert set(by_authors) == {"layers.1.downsample.norm.bias", "norm.weight"}
    loaded = encoder(weights=str(tmp_path / name))
    for actual, expected in zip(loaded.eval()(images), source.eval()(images), strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("name", ["test_resnet", "resnet18", "convnext_atto"])
def test_a_classifier_of_timm_is_read(tmp_path, name, images):
    classifier = timm.create_model(name).eval()
    torch.save(classifier.state_dict(), tmp_path / "timm.pth")
    features = encoder(name, weights=str(tmp_path / "timm.pth")).eval()(images)
    assert_close(features[-1], classifier.forward_intermediates(images, norm=False)[1][-1])


def test_norms_that_a_classifier_lacks_stay_plain(tmp_path, monkeypatch):
    tiny = {"embed_dim": 16, "depths": (1, 1, 1, 1), "num_heads": (1, 1, 1, 1)}
    classifier = timm.create_model(SWIN_T, **tiny)
    nn.init.constant_(classifier.norm.weight, 2.0)
    torch.save(classifier.state_dict(), tmp_path / "timm.pth")
    monkeypatch.setattr("fedhca2.models.encoder.SMALL", {"swin_nano": tiny})
    config = EncoderConfig(name="swin_nano", weights=str(tmp_path / "timm.pth"))
    assert [norm.weight.mean().item() for norm in Encoder(config, (224, 224)).norms] == [1, 1, 1, 2]


@pytest.mark.parametrize("offline", [False, True])
def test_weights_of_timm_come_from_timm(monkeypatch, images, offline):
    create, requests = timm.create_model, []

    def without_hub(name, pretrained=False, **options):
        requests.append(pretrained)
        if pretrained and offline:
            raise OSError("the hub is away")
        torch.manual_seed(7)
        return create(name, **options)

    monkeypatch.setattr(pretrained.timm, "create_model", without_hub)
    if offline:
        with pytest.raises(ValueError, match=r"weights 'timm': .* OSError: the hub is away"):
            encoder("test_resnet", weights="timm")
        return
    loaded = encoder("test_resnet", weights="timm").eval()
    expected = without_hub("test_resnet").eval().forward_intermediates(images, norm=False)[1][-1]
    assert_close((requests.count(True), loaded(images)[-1]), (1, expected))


def test_a_missing_tensor_and_weights_of_another_encoder_are_errors(tmp_path, source):
    state = dict(source.state_dict())
    del state["body.layers_1.blocks.0.norm1.bias"]
    other = timm.create_model("test_resnet").state_dict()
    missing = r"encoder 'swin_micro', got 1 of \d+ tensors missing .* body.layers_1.blocks.0.norm1.bias, missing"
    for tensors, message in ((state, missing), (other, "expected those of encoder 'swin_micro'")):
        torch.save(tensors, tmp_path / "weights.pth")
        with pytest.raises(ValueError, match=message):
            encoder(weights=str(tmp_path / "weights.pth"))


def test_a_run_notes_the_digest_of_its_weights_and_accepts_no_other(tmp_path, source):
    path = tmp_path / "own.safetensors"
    save_file(source.state_dict(), path)
    values = small(model={"encoder": {"name": "swin_micro", "weights": str(path)}}).to_dict()
    assert values["model"]["encoder"]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()
    with pytest.raises(ValueError, match="expected sha256 0"):
        encoder(weights=str(path), sha256="0")


class Runs:
    """A pickle that runs code when it is loaded."""

    def __reduce__(self):
        return print, ("code of a pickle was run",)


FOREIGN = {
    "text": b"root:x:0:0:root:/root:/bin/bash\n",
    "nothing": b"",
    "a pickle of no tensors": pickle.dumps({"state_dict": [1, 2]}),
    "a pickle that runs code": pickle.dumps(Runs()),
}


@pytest.mark.parametrize("suffix", ["", ".pth", ".safetensors"])
@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_weights_is_refused_in_a_line(tmp_path, kind, suffix):
    (tmp_path / f"weights{suffix}").write_bytes(FOREIGN[kind])
    with pytest.raises(ValueError, match=r"^weights '.*weights[.a-z]*': expected .+, got .+$"):
        encoder(weights=str(tmp_path / f"weights{suffix}"))


def test_weights_that_are_no_file_are_refused(tmp_path):
    (tmp_path / "folder").mkdir()
    socket.socket(socket.AF_UNIX).bind(str(tmp_path / "socket"))
    for path in (tmp_path / "folder", tmp_path / "socket", "a" * 5000):
        with pytest.raises(ValueError, match=r"weights: expected one of none, scenes, timm, or a file"):
            encoder(weights=str(path))
