"""What a method adds to local training: its gradient in the training loop, and its effect on a client."""

from copy import deepcopy

import pytest
import torch
from real_federation import clients_of, federated
from torch.testing import assert_close

from fedhca2.clients.training import Learner, LocalTerms
from fedhca2.methods import METHODS
from fedhca2.params import Slot
from fedhca2.tasks import TASKS

PULLING = ("fedprox", "ditto", "fedamp")
STRENGTH = {"fedprox": "mu", "ditto": "lam", "fedamp": "lam", "feddyn": "strength"}
ENCODER = Slot("encoder")


@pytest.fixture(scope="module")
def client():
    return next(client for client in clients_of("local") if client.name == "home")


@pytest.fixture(scope="module")
def batch(client):
    return next(client.data.train.training(seed=0, client="home", epoch=0))


@pytest.mark.parametrize("name", PULLING)
def test_a_step_follows_the_gradient_of_the_losses_and_of_the_term(client, batch, name, rng):
    """From distant anchors for every pulled parameter."""
    pull, model = METHODS[name].local.pull, deepcopy(client.personal.model).train()
    parameters = dict(model.named_parameters())
    pulled = [key for key in parameters if key.startswith(("encoder.", "decoders."))]
    anchors = [
        (key, parameters[key].detach() + 0.3 * torch.randn(parameters[key].shape, generator=rng)) for key in pulled
    ]
    outputs = model(batch.image).items()
    tasks = sum(TASKS[task].weight * TASKS[task].loss(output, batch.labels[task]) for task, output in outputs)
    term = pull / 2 * sum((parameters[key] - anchor).square().sum() for key, anchor in anchors)
    expected = torch.autograd.grad(tasks + term, list(parameters.values()))
    Learner(model, client.training).train_epoch([batch], 0.0, LocalTerms(pull=pull, pulled=anchors))
    for parameter, gradient in zip(parameters.values(), expected, strict=True):
        assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)


def distance(name, strength):
    """How far an encoder is, at the end of a round, from its anchor in that round."""
    turns = federated(name, **{STRENGTH[name]: strength}).turns["home"]
    turn = turns[0 if name == "feddyn" else 1]  # in its second round, FedDyn's own updates are part of the anchor
    anchor = turn.received[ENCODER]
    if name == "fedamp":  # what was sent does not take the place of its own
        anchor = sum(addend.row for addend in turn.order.deliveries[ENCODER].addends)
    return float((turn.personal[ENCODER] - anchor).norm())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PULLING, "feddyn"])
def test_a_strong_pull_ends_nearer_to_the_anchor(name):
    assert distance(name, 1e4) < 0.9 * distance(name, 1e-6)


@pytest.mark.parametrize(("name", "without"), [("fedprox", "fedavg"), ("ditto", "local"), ("fedamp", "local")])
def test_the_term_of_the_catalogue_changes_the_result(name, without):
    found, plain = (federated(each).turns["home"][-1].personal[ENCODER] for each in (name, without))
    assert not torch.equal(found, plain)


def test_a_drift_is_subtracted_times_the_learning_rate(client, batch):
    """For AdamW as for SGD, and from what it names alone."""
    training = client.training.model_copy(update={"encoder_rate": 3e-3, "learning_rate": 1e-3})
    name, parameter = next(iter(client.personal.model.encoder.named_parameters(prefix="encoder")))
    drift, found = torch.randn(parameter.shape), []
    for drifts in ([], [(name, drift)]):
        model = deepcopy(client.personal.model)
        Learner(model, training).train_epoch([batch], 2e-4, LocalTerms(drifts=drifts))
        found.append(dict(model.named_parameters()))
    plain, drifted = found
    assert_close(plain[name] - drifted[name], 3 * 2e-4 * drift, rtol=1e-2, atol=1e-7)
    assert all(torch.equal(plain[other], drifted[other]) for other in plain if other != name)


def test_scaffold_moves_a_client_towards_the_steps_of_all():
    """Its correction makes up for the difference between the client's mean step and that of all, to the last digit."""
    fleet = federated("scaffold")
    total = 0
    for client, turns in fleet.turns.items():
        kept = fleet.clients[client].exchange.kept[ENCODER]
        drift = fleet.clients[client].objective.drift(kept)
        assert float(drift.norm()) > 0
        total = total + drift
        last = turns[1]
        own = (last.after[ENCODER] - last.received[ENCODER]) / (last.reply.steps * kept["rate"])
        assert float(drift @ (own + kept["all"])) != 0
    assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-2 * float(drift.norm()))


def test_feddyn_pulls_towards_the_received_model_without_the_client_s_own_updates():
    fleet = federated("feddyn")
    client, turns = fleet.clients["home"], fleet.turns["home"]
    own = sum(turn.after[ENCODER] - turn.received[ENCODER] for turn in turns[:2])
    assert_close(client.objective.shift(client.exchange.kept[ENCODER]), -own, rtol=1e-4, atol=1e-6)
    received = client.rows([ENCODER])[ENCODER]
    assert_close(client.exchange.anchors(client.shared.model)[ENCODER], received - own, rtol=1e-4, atol=1e-6)
    assert set(client.exchange.anchors(client.shared.model)) == {ENCODER}
