"""Clients that are built when it is their turn, from models of others that left memory."""

import pytest
import torch

from fedhca2.clients import DeviceSlot
from fedhca2.experiment import assign_shards, build, open_data
from fedhca2.experiment.build import plan_clients
from small import SMALL, small

TWO = [{"data": "outdoor", "split": ["sal"], "copies": 2}]
KINDS = {
    "fedhca2": {},
    "an own copy": {"method": "ditto"},
    "a frozen backbone": {"model": {**SMALL["model"], "encoder": {**SMALL["model"]["encoder"], "frozen": True}}},
}


def plans(**changes):
    experiment = small(**{**changes, "clients": TWO})
    data = open_data(experiment)
    return plan_clients(experiment, data, assign_shards(experiment, data), DeviceSlot(torch.device("cpu")))


def spoilt(client):
    """The client with values that would be noticed anywhere."""
    with torch.no_grad():
        for model in {client.personal.model, client.shared.model}:
            for name, tensor in model.state_dict().items():
                if name not in model.fixed:
                    tensor.fill_(7)
    return client


def same(one, other):
    found, expected = one.current.tensors, other.current.tensors
    return found.keys() == expected.keys() and all(found[name].equal(value) for name, value in expected.items())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_a_client_has_nothing_of_the_one_whose_model_it_got(kind):
    first, second = plans(**kind)
    expected = plans(**kind)[1].build()
    body = spoilt(first.build())
    first.retire(body)
    found = second.build()
    assert found.personal.model in (body.personal.model, body.shared.model)
    assert same(found, expected)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_nor_has_one_in_a_saved_state(kind):
    first, second = plans(**kind)
    expected = plans(**kind)[1].build()
    first.retire(spoilt(first.build()))
    assert same(second.rebuild(expected.state()), expected)


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_large_models_are_not_kept_whether_they_train_or_not(kind, monkeypatch):
    whole = plans(**kind)[0].build().personal.model
    monkeypatch.setattr(build, "MAX_SPARE_PARAMETERS", sum(value.numel() for value in whole.parameters()) - 1)
    assert not passes_its_model_on(*plans(**kind))


def test_models_with_own_classes_which_may_hold_more_than_tensors_are_not_kept():
    decoder = {"kind": "fedhca2.models.multitask:Decoder"}
    assert passes_its_model_on(*plans())
    assert not passes_its_model_on(*plans(model={**SMALL["model"], "decoder": decoder}))


def passes_its_model_on(first, second):
    old = first.build()
    first.retire(old)
    return second.build().personal.model is old.personal.model
