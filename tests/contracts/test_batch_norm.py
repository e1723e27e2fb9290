"""How BatchNorm's running statistics are handled when parameters are aggregated."""

from copy import deepcopy

import pytest
import torch
from array_federation import SCENARIOS, ArrayFederation, Site
from real_federation import federated
from torch.testing import assert_close

from fedhca2.methods import resolve
from fedhca2.params import Slot, assign

ENCODER, ENCODER_NORMS, HOME_DEPTH = Slot("encoder"), Slot("encoder_norms"), Slot("decoder_norms", "depth")
PAIRS = [Site("outdoor", (task,)) for task in ("semseg", "sal", "semseg", "sal")]


def norms(record, moment):
    return {slot: row for slot, row in getattr(record, moment).items() if slot.part == "decoder_norms"}


@pytest.mark.parametrize(("name", "policy"), [("fedavg", "local"), ("fedper", "local"), ("fedper", "average")])
def test_local_statistics_and_those_of_unshared_parts_do_not_change(name, policy):
    for records in federated(name, batch_norm=policy).records.values():
        assert all(torch.equal(row, records[1].before[slot]) for slot, row in norms(records[1], "received").items())


def test_averaged_statistics_are_the_mean_of_all_decoders():
    fleet = federated("fedavg", batch_norm="average")
    sent = [row for records in fleet.records.values() for row in norms(records[0], "after").values()]
    mean = torch.stack(sent).double().mean(dim=0).float()
    for records in fleet.records.values():
        for row in norms(records[1], "received").values():
            assert_close(row, mean, rtol=1e-6, atol=1e-7)


def test_recalibrated_statistics_are_those_of_the_local_images():
    fleet = federated("fedavg", batch_norm="recalibrate")
    client, record = fleet.clients["home"], fleet.records["home"][1]
    model = deepcopy(client.personal.model).train()
    for slot, tensors in model.slots().items():
        assign(tensors, record.received[slot], client.layouts[slot])
    seen = []
    model.decoders["depth"].norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for batch in client.data.train.training(seed=client.data.seed, client="home", epoch=1):
        model(batch.image)
    mean = torch.stack([features.mean(dim=(0, 2, 3)) for features in seen]).mean(dim=0)
    variance = torch.stack([features.transpose(0, 1).flatten(1).var(dim=1) for features in seen]).mean(dim=0)
    assert_close(record.received[HOME_DEPTH], torch.cat([mean, variance]), rtol=1e-4, atol=1e-6)
    assert {slot.part for slot in record.order.deliveries} == {"encoder", "decoder"}


@pytest.mark.parametrize("name", ["fedavg", "single_task_fl", "fedpull", "matfl", "matfl_voting", "fedhca2", "ties"])
def test_statistics_are_mixed_as_their_parameters_or_averaged(name):
    """And the mixture replaces a client's own: a sum of changes could make a variance negative."""
    federation, sent = ArrayFederation(resolve(name, {"batch_norm": "average"}), PAIRS), []
    federation.round(lambda replies: sent.extend(reply.rows[ENCODER_NORMS] for reply in replies) or replies)
    blends = {each.part: each.mixing.blends[0] for each in federation.record.aggregations}
    weights = {part: each.weights[list(each.gets)] for part, each in blends.items() if part.endswith("_norms")}
    for part, actual in weights.items():
        own, averaged = blends[part.removesuffix("_norms")], torch.full((4, 4), 0.25, dtype=torch.float64)
        assert torch.equal(actual, averaged if name in ("fedhca2", "ties") else own.weights[list(own.gets)])
    expected = (weights["encoder_norms"] @ torch.stack(sent).double()).float()
    assert_close(torch.stack([client.rows[ENCODER_NORMS] for client in federation.clients]), expected)


@pytest.mark.parametrize("scenario", SCENARIOS)
@pytest.mark.parametrize("name", ["matfl", "matfl_voting", "single_task_fl", "fedhca2"])
def test_every_client_gets_its_statistics(name, scenario):
    federation = ArrayFederation(resolve(name, {"batch_norm": "average"}), SCENARIOS[scenario])
    deliveries = federation.round()
    for client in federation.clients:
        uploads = federation.server.uploads(client.profile.client, 0)
        assert set(deliveries[client.profile.client]) == {slot for slot in client.rows if slot.part in uploads}
    seldom = resolve("fedper", {"batch_norm": "average", "decoder": {"kind": "group_mean", "every": 2}})
    parts = [set(seldom.uploads(round)) - {"encoder", "encoder_norms"} for round in range(2)]
    assert parts == [set(), {"decoder", "decoder_norms"}]  # statistics go with their parameters
