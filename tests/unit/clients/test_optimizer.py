"""A client's optimiser, the lifetime of its moments, and the weights of its losses."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedhca2.clients.optimizer import OptimizerConfig
from fedhca2.clients.step import take_step
from fedhca2.clients.training import Learner
from fedhca2.messages import Order
from small import SMALL, clients, small

FRESH = {"kind": "adam", "amsgrad": True, "reset": "every_round"}


def client(name="home", method="fedhca2", **training):
    return clients(small(method=method, training={**SMALL["training"], **training}))[name]


def after_steps(make, steps=4):
    """Parameters after steps on shrinking random gradients."""
    rng = torch.Generator().manual_seed(0)
    parameter = nn.Parameter(torch.randn(5, generator=rng))
    optimizer = make([parameter])
    for step in range(steps):
        parameter.grad = torch.randn(5, generator=rng) / 10**step
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize(
    ("settings", "reference"),
    [
        ({}, lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.01, fused=True)),
        ({"kind": "adam"}, lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01, fused=True)),
        ({"kind": "adam", "amsgrad": True}, lambda p: torch.optim.Adam(p, 0.1, weight_decay=0.01, amsgrad=True)),
    ],
)
def test_steps_are_those_of_torch(settings, reference):
    found = after_steps(lambda p: OptimizerConfig(**settings).build(p, 0.1, 0.01))
    exact = {"rtol": 0, "atol": 0} if "amsgrad" not in settings else {}  # which is compared with a different kernel
    assert_close(found, after_steps(reference), **exact)


def test_the_kinds_step_differently():
    kinds = [{}, {"amsgrad": True}, {"kind": "adam"}, {"kind": "adam", "amsgrad": True}]
    found = [after_steps(lambda p, kind=kind: OptimizerConfig(**kind).build(p, 0.1, 0.01)) for kind in kinds]
    assert len({tuple(values.tolist()) for values in found}) == len(kinds)


@pytest.mark.parametrize("name", ["optimizer", "loss_weights"])
def test_what_is_said_of_training_reaches_the_steps(name):
    changed = {"optimizer": {"kind": "adam", "amsgrad": True}, "loss_weights": False}[name]
    both = client("outdoor-normals"), client("outdoor-normals", **{name: changed})
    replies = [each.perform(Order(0, upload={"head": "parameters"})) for each in both]
    assert not any(torch.equal(row, replies[1].rows[slot]) for slot, row in replies[0].rows.items())


def test_a_fresh_optimiser_knows_nothing_of_earlier_rounds():
    one, other = client(optimizer=FRESH), client(optimizer=FRESH)
    one.perform(Order(0))
    other.personal.model.load_state_dict(one.personal.model.state_dict())
    replies = [each.perform(Order(1, upload={"head": "parameters"})) for each in (one, other)]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)


def test_a_fresh_optimiser_lasts_for_all_epochs_of_a_round():
    clients_ = [{"name": "home", "data": "indoor", "tasks": ["depth"], "epochs": 2}]
    training = {**SMALL["training"], "optimizer": FRESH, "schedule": {"warmup_epochs": 0, "lag": False, "decay": 1.0}}
    found = clients(small(clients=clients_, training=training))["home"]
    learner = Learner(deepcopy(found.personal.model), found.training)
    for epoch in range(2):
        learner.train_epoch(found.data.train.training(seed=0, client="home", epoch=epoch), 1e-3)
    found.perform(Order(0))
    assert_close(dict(found.personal.model.state_dict()), dict(learner.model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("method", ["fedhca2", "ditto"])
def test_no_model_of_a_client_keeps_what_a_fresh_optimiser_had(method):
    found = client(method=method, optimizer=FRESH)
    found.perform(Order(0))
    assert not any("/optimizer/" in name for name in found.state().tensors)


def test_the_third_moment_of_amsgrad_is_part_of_the_state():
    first, second = (client(optimizer={"amsgrad": True}) for _ in range(2))
    first.perform(Order(0))
    second.restore(first.state())
    replies = [each.perform(Order(1, upload={"head": "parameters"})) for each in (first, second)]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)
    assert any(name.startswith("personal/optimizer/max_exp_avg_sq/") for name in first.state().tensors)


def test_a_loss_without_its_weight_has_a_tenth_of_the_gradient():
    found = client("outdoor-normals")
    batch = next(found.data.train.training(seed=0, client="outdoor-normals", epoch=0))
    gradients = []
    for weighted in (True, False):
        model = deepcopy(found.personal.model)
        take_step(model, torch.optim.SGD(model.parameters(), lr=0.0), batch, "fp32", weighted=weighted)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert_close([gradient / 10 for gradient in gradients[0]], gradients[1], rtol=1e-4, atol=1e-7)
