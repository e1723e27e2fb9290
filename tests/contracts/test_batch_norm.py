"""What becomes of BatchNorm's running statistics when parameters are aggregated."""

from copy import deepcopy

import pytest
import torch
from real_federation import federated
from torch.testing import assert_close

from fedhca2.params import Slot, assign

HOME_DEPTH = Slot("decoder_norms", "depth")


def norms(turn, moment):
    return {slot: row for slot, row in getattr(turn, moment).items() if slot.part == "decoder_norms"}


def test_local_statistics_stay_as_they_were():
    for turns in federated("fedavg").turns.values():
        assert all(torch.equal(row, turns[1].before[slot]) for slot, row in norms(turns[1], "received").items())


def test_averaged_statistics_are_the_mean_of_all_decoders():
    fleet = federated("fedavg", batch_norm="average")
    sent = [row for turns in fleet.turns.values() for row in norms(turns[0], "after").values()]
    mean = torch.stack(sent).double().mean(dim=0).float()
    for turns in fleet.turns.values():
        for row in norms(turns[1], "received").values():
            assert_close(row, mean, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("policy", ["local", "average"])
def test_statistics_of_a_part_that_is_not_shared_stay_local(policy):
    for turns in federated("fedper", batch_norm=policy).turns.values():
        assert all(torch.equal(row, turns[1].before[slot]) for slot, row in norms(turns[1], "received").items())


def test_recalibrated_statistics_are_those_of_the_local_images():
    fleet = federated("fedavg", batch_norm="recalibrate")
    client, turn = fleet.clients["home"], fleet.turns["home"][1]
    model = deepcopy(client.personal.model).train()
    for slot, tensors in model.slots().items():
        assign(tensors, turn.received[slot], client.layouts[slot])
    seen = []
    model.decoders["depth"].norm.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    for batch in client.work.train.training(seed=client.work.seed, client="home", epoch=1):
        model(batch["image"])
    mean = torch.stack([features.mean(dim=(0, 2, 3)) for features in seen]).mean(dim=0)
    variance = torch.stack([features.transpose(0, 1).flatten(1).var(dim=1) for features in seen]).mean(dim=0)
    assert_close(turn.received[HOME_DEPTH], torch.cat([mean, variance]), rtol=1e-4, atol=1e-6)


def test_recalibration_does_not_cross():
    assert {slot.part for slot in federated("fedavg", batch_norm="recalibrate").turns["home"][1].order.deliveries} == {
        "encoder",
        "decoder",
    }
