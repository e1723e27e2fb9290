"""Federations whose clients have different encoders: resumed, over Flower, with sums alone, and on a page."""

import pytest
import torch
from federations import Federation, assert_as_in_one_process, cut_off, in_memory, small_experiment

from fedhca2.deployment.trained import Trained
from fedhca2.federation.flower.deploy.consent import expected_profile
from fedhca2.federation.flower.records import decode_profile, header_of, pack, profile_as_data
from fedhca2.federation.gate import UnusableError
from fedhca2.federation.run import run
from fedhca2.params import Slot
from fedhca2.reports.page.write import write_page
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher
from tiny_encoder import TINY

pytestmark = pytest.mark.slow
# Two clients have the tiny encoder, and nobody has that of `home`.
CLIENTS = [
    {"data": "outdoor", "split": ["semseg", "normals"]},
    {"name": "home", "data": "indoor", "tasks": ["depth", "normals"], "model": {"encoder": {"name": "test_resnet"}}},
]


def mixed(**changes):
    model = {"encoder": {"name": TINY, "drop_path": 0.2}, "feature_width": 8, "decoder_width": 8}
    return small_experiment(**{"clients": CLIENTS, "model": model, "rounds": 3, **changes})


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    out = tmp_path_factory.mktemp("mixed") / "run"
    run(mixed(), out, watcher=Watcher())
    return out


def adapted():
    """Two clients train adapters, and one has a frozen encoder and nothing of it to exchange."""
    encoder = {"name": "test_vit", "adapters": {"rank": 2}}
    home = {**CLIENTS[1], "model": {"encoder": {"name": "test_resnet", "frozen": True}, "feature_width": None}}
    return mixed(clients=[CLIENTS[0], home], model={"encoder": encoder, "feature_width": 8, "decoder_width": 8})


def exchanging():
    """The client with several tasks has an interaction, which stays with it."""
    return mixed(model={"encoder": {"name": TINY}, "decoder_width": 8, "interaction": "cross_attention"}, rounds=2)


@pytest.mark.parametrize("experiment", [mixed(), adapted(), exchanging()], ids=["encoders", "adapters", "interaction"])
def test_a_run_over_flower_that_crashed_equals_a_run_in_process(experiment, tmp_path):
    found = cut_off(experiment, tmp_path)
    assert_as_in_one_process(found, found.resume())


def test_a_site_with_another_frozen_backbone_is_refused():
    experiment = adapted()
    profile = expected_profile(experiment, experiment.specs[0])
    header = {**header_of(pack(profile_as_data(profile))), "backbone": "0" * 32, "samples": 4}
    with pytest.raises(UnusableError, match="backbone of outdoor-semseg: expected"):
        decode_profile(header, profile)


@pytest.mark.parametrize("method", [{"name": "fedavg"}, {"name": "fedhca2", "decoder": {"kind": "mean"}}])
def test_sums_without_rows_give_the_same_decoders(method, tmp_path):
    settings = {"method": method, "rounds": 1}
    expected, _ = in_memory(mixed(**settings))
    secure = Federation(mixed(**settings, secure_aggregation={"sketch": 1024}), tmp_path)
    secure.run()
    found, plain = secure.sites["home"].client, expected["home"]
    for name, tensor in found.personal.model.slots()[Slot("decoder", "depth")].items():
        torch.testing.assert_close(tensor, plain[f"decoders.depth.{name}"], rtol=1e-4, atol=1e-5)


def test_an_encoder_that_nobody_shares_is_not_sent(done):
    sent = {e["client"]: e["bytes_up"] for e in RunFiles(done).events if e["event"] == "client" and e["round"] == 0}
    slots = Trained.open(done, "home").model().slots()
    decoders = [tensor for slot, own in slots.items() if slot.part == "decoder" for tensor in own.values()]
    assert sent["home"] < sum(4 * tensor.numel() for tensor in decoders) + 200 < sent["outdoor-semseg"]


def test_a_page_shows_the_encoders_that_were_mixed(done, tmp_path):
    page = write_page([RunFiles(done)], tmp_path / "page.html").read_text()
    assert "cosine-encoder" in page
