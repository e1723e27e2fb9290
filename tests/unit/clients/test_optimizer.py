"""A client's optimiser, the lifetime of its moments, the weights of its losses, and heads that train first."""

from copy import deepcopy
from dataclasses import replace
from math import inf

import pytest
import torch
from pydantic import ValidationError
from torch import nn
from torch.testing import assert_close

from fedhca2.clients import Privacy, Training
from fedhca2.clients.training import Learner, OptimizerConfig, take_step
from fedhca2.federation.guard import Reach
from fedhca2.messages import Order, Profile
from fedhca2.methods import resolve
from fedhca2.objectives import DECODER_AND_HEAD, ENCODER, HeadsFirst
from fedhca2.params import PARTS
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
        ({"kind": "sgd"}, lambda p: torch.optim.SGD(p, 0.1, weight_decay=0.01)),
        ({"kind": "sgd", "momentum": 0.9}, lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, weight_decay=0.01)),
    ],
)
@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1)], ids=["plain", "captured"])
def test_steps_are_those_of_torch(settings, reference, rate):
    actual = after_steps(lambda p: OptimizerConfig(**settings).build(p, rate, 0.01))
    exact = {"rtol": 0, "atol": 0} if settings.keys() <= {"kind"} else {}  # others are compared with other kernels
    assert_close(actual, after_steps(reference), **exact)


@pytest.mark.parametrize("settings", [{"kind": "sgd", "amsgrad": True}, {"kind": "adam", "momentum": 0.9}])
def test_a_setting_of_another_kind_is_refused(settings):
    with pytest.raises(ValidationError, match="only"):
        OptimizerConfig(**settings)


def moves(client, **training):
    """How far SGD moves each value of a client's encoder, and of its decoders and heads."""
    learner = Learner(
        deepcopy(client.personal.model), Training(optimizer={"kind": "sgd"}, weight_decay=0.0, **training)
    )
    before = {name: value.detach().clone() for name, value in learner.model.named_parameters()}
    learner.train_epoch([next(client.batches(0))], rate=1e-2)
    moved = {name: value.detach() - before[name] for name, value in learner.model.named_parameters()}
    encoder = {name: value for name, value in moved.items() if name.startswith("encoder.")}
    return encoder, {name: value for name, value in moved.items() if name not in encoder}


def test_an_encoder_with_a_rate_of_its_own_moves_by_its_share_of_the_schedules_rate():
    member = client()
    (encoder, others), (slow, same) = moves(member), moves(member, learning_rate=1e-3, encoder_rate=1e-4)
    assert_close(same, others, rtol=0, atol=0)
    assert_close({name: 10 * value for name, value in slow.items()}, encoder, rtol=1e-3, atol=1e-6)
    assert any(value.abs().max() > 1e-6 for value in slow.values())


@pytest.mark.parametrize("name", ["optimizer", "loss_weights"])
def test_settings_of_training_change_the_steps(name):
    changed = {"optimizer": {"kind": "adam", "amsgrad": True}, "loss_weights": False}[name]
    both = client("outdoor-normals"), client("outdoor-normals", **{name: changed})
    replies = [each.perform(Order(0, upload={"head": "parameters"})) for each in both]
    assert not any(torch.equal(row, replies[1].rows[slot]) for slot, row in replies[0].rows.items())


def test_a_fresh_optimiser_lasts_for_all_epochs_of_a_round():
    clients_ = [{"name": "home", "data": "indoor", "tasks": ["depth"], "epochs": 2}]
    training = {**SMALL["training"], "optimizer": FRESH, "schedule": {"warmup_epochs": 0, "lag": False, "decay": 1.0}}
    member = clients(small(clients=clients_, training=training))["home"]
    learner = Learner(deepcopy(member.personal.model), member.training)
    for epoch in range(2):
        learner.train_epoch(member.data.train.training(seed=0, client="home", epoch=epoch), 1e-3)
    member.perform(Order(0))
    assert_close(dict(member.personal.model.state_dict()), dict(learner.model.state_dict()), rtol=0, atol=0)


def test_no_model_of_a_client_keeps_what_a_fresh_optimiser_had():
    member = client(method="ditto", optimizer=FRESH)
    member.perform(Order(0))
    assert not any("/optimizer/" in name for name in member.state().tensors)


@pytest.mark.parametrize(
    ("settings", "moment"),
    [({"amsgrad": True}, "max_exp_avg_sq"), ({"kind": "sgd", "momentum": 0.9}, "momentum_buffer")],
)
def test_all_moments_are_part_of_the_state(settings, moment):
    first, second = (client(optimizer=settings) for _ in range(2))
    first.perform(Order(0))
    second.restore(first.state())
    replies = [each.perform(Order(1, upload={"head": "parameters"})) for each in (first, second)]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)
    assert any(name.startswith(f"personal/optimizer/{moment}/") for name in first.state().tensors)


def test_a_loss_without_its_weight_has_a_tenth_of_the_gradient():
    member = client("outdoor-normals")
    batch = next(member.data.train.training(seed=0, client="outdoor-normals", epoch=0))
    gradients = []
    for weighted in (True, False):
        model = deepcopy(member.personal.model)
        take_step(model, torch.optim.SGD(model.parameters(), lr=0.0), batch, "fp32", weighted=weighted)
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert_close([gradient / 10 for gradient in gradients[0]], gradients[1], rtol=1e-4, atol=1e-7)


def reach(part, clip=None, **training):
    """How far a guard believes that a part's row can move."""
    limits = Reach(Training(**training), Privacy(clip=clip), rounds=4, epochs={"a": 1})
    return limits.of_row(Profile("a", "outdoor", ("edge",), 80, {}), part, 100, range(2), 80).within(1.0)


def test_a_guard_knows_the_rate_of_each_part_and_bounds_sgd_by_the_clip_alone():
    rates = {"learning_rate": 1e-3, "encoder_rate": 1e-4}
    assert reach("encoder", **rates) == pytest.approx(reach("decoder", **rates) / 10)
    sgd = {"optimizer": {"kind": "sgd"}}
    assert (reach("encoder", **sgd), reach("encoder", clip=0.5, **sgd)) == (inf, 1.0)


def test_a_batch_without_labels_of_a_task_trains_the_others_alone():
    one = client()
    model, batch = one.personal.model, next(one.batches(0))
    unlabelled = replace(batch, labels={**batch.labels, "depth": torch.full_like(batch.labels["depth"], 255)})
    losses = take_step(model, one.personal.optimizer, unlabelled, "fp32")
    moved = {task: any(p.grad.any() for p in model.decoders[task].parameters()) for task in model.decoders}
    assert (float(losses["depth"]), moved) == (0, {"semseg": True, "depth": False})
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.fixture
def passes(monkeypatch):
    """For every epoch that is trained: the parts that change in it, its rate, and a batch of it."""
    records, train = [], Learner.train_epoch

    def recorded(self, batches, rate, terms, **others):
        batches = list(batches)
        before = {slot: [t.clone() for t in tensors.values()] for slot, tensors in self.model.slots().items()}
        losses = train(self, batches, rate, terms, **others)
        after = {slot: list(tensors.values()) for slot, tensors in self.model.slots().items()}
        changed = {slot.part for slot in after if any(map(_differ, before[slot], after[slot]))}
        records.append((changed, rate, batches[0].image))
        return losses

    monkeypatch.setattr(Learner, "train_epoch", recorded)
    return records


def _differ(one, other):
    return not torch.equal(one, other)


def test_heads_train_before_the_encoder_with_its_rate_and_other_batches(passes):
    heard = []
    client = clients(small(method={"name": "fedrep", "head_epochs": 2}))["home"]
    client.perform(Order(0), lambda name, done, total, loss: heard.append((done, total)))
    client.perform(Order(1))
    changed, rates, images = zip(*passes, strict=True)
    swin = set(PARTS) - {"encoder_norms"}  # it has none
    assert list(changed) == 2 * [swin - ENCODER, swin - ENCODER, swin - DECODER_AND_HEAD]
    assert (rates[0], rates[3]) == (rates[2], rates[5])
    assert rates[0] > rates[3]
    assert all(_differ(images[a], images[b]) for a in range(6) for b in range(a))
    draws = [epoch.draw for round in range(3) for epoch in HeadsFirst(head_epochs=3).epochs(round, 4, 2)]
    assert len(set(draws)) == len(draws) == 15
    assert heard == [(done, len(heard)) for done in range(1, 3 * len(client.data.train) + 1)]


@pytest.mark.parametrize("part", ["decoder", "head"])
def test_heads_that_train_first_are_not_shared(part):
    with pytest.raises(ValueError, match="decoder and head: expected null"):
        resolve("fedrep", {part: {"kind": "group_mean"}})
