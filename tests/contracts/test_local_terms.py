"""What a method adds to local training: its gradient in the training loop, and its effect on a client."""

from copy import deepcopy

import pytest
import torch
from real_federation import clients_of, federated
from torch.testing import assert_close

from fedhca2.clients.training import Learner, LocalTerms
from fedhca2.methods import METHODS
from fedhca2.params import Slot

PULLING = ("fedprox", "ditto", "fedamp")
PULLED_PARTS = ("encoder", "decoder")
ENCODER = Slot("encoder")


class Problem:
    """A client's model with a batch, and a distant anchor for every pulled parameter."""

    def __init__(self):
        client = next(client for client in clients_of("local") if client.name == "home")
        self.training = client.training
        self.model = client.personal.model
        self.batch = next(client.data.train.training(seed=0, client="home", epoch=0))
        rng = torch.Generator().manual_seed(0)
        slots = [tensors for slot, tensors in self.model.slots().items() if slot.part in PULLED_PARTS]
        self.pulled = [parameter for tensors in slots for parameter in tensors.values()]
        self.anchors = [p.detach() + 0.3 * torch.randn(p.shape, generator=rng) for p in self.pulled]

    def gradients(self, pull, anchors=True):
        """Gradients of all parameters in one training step at rate 0."""
        learner = Learner(self.model, self.training)
        names = {id(parameter): name for name, parameter in self.model.named_parameters()}
        pairs = [(names[id(p)], anchor) for p, anchor in zip(self.pulled, self.anchors, strict=True)] if anchors else []
        learner.train_epoch([self.batch], 0.0, LocalTerms(pull=pull, pulled=pairs))
        return [parameter.grad.clone() for parameter in self.model.parameters()]


@pytest.fixture(scope="module")
def problem():
    return Problem()


@pytest.mark.parametrize("name", PULLING)
def test_the_training_loop_adds_the_gradient_of_the_term(problem, name):
    pull = METHODS[name].local.pull
    added = [a - b for a, b in zip(problem.gradients(pull), problem.gradients(0.0, anchors=False), strict=True)]
    expected = {id(p): pull * (p - a).detach() for p, a in zip(problem.pulled, problem.anchors, strict=True)}
    for parameter, actual in zip(problem.model.parameters(), added, strict=True):
        assert_close(actual, expected.get(id(parameter), torch.zeros_like(actual)), rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", [*PULLING, "feddyn"])
def test_a_strong_pull_ends_nearer_to_the_anchor(name):
    setting = {"fedprox": "mu", "feddyn": "strength"}.get(name, "lam")
    distances = []
    for strength in (1e4, 1e-6):
        record = federated(name, **{setting: strength}).records["home"][0 if name == "feddyn" else 1]
        anchor = record.received[ENCODER]
        if name == "fedamp":  # what was sent does not replace its own
            anchor = sum(addend.row for addend in record.order.deliveries[ENCODER].addends)
        distances.append(float((record.personal[ENCODER] - anchor).norm()))
    assert distances[0] < 0.9 * distances[1]


def test_a_drift_is_subtracted_times_the_learning_rate(problem):
    """For AdamW as for SGD, and from what it names alone."""
    training = problem.training.model_copy(update={"encoder_rate": 3e-3, "learning_rate": 1e-3})
    name = next(name for name, _ in problem.model.named_parameters() if name.startswith("encoder."))
    drift = torch.randn(dict(problem.model.named_parameters())[name].shape)
    actual = []
    for drifts in ([], [(name, drift)]):
        model = deepcopy(problem.model)
        Learner(model, training).train_epoch([problem.batch], 2e-4, LocalTerms(drifts=drifts))
        actual.append(dict(model.named_parameters()))
    plain, drifted = actual
    assert_close(plain[name] - drifted[name], 3 * 2e-4 * drift, rtol=1e-2, atol=1e-7)
    assert all(torch.equal(plain[other], drifted[other]) for other in plain if other != name)


def test_scaffold_moves_a_client_towards_the_steps_of_all():
    """Its correction makes up for the difference between the client's mean step and that of all, to the last digit."""
    fleet = federated("scaffold")
    total = 0
    for client, records in fleet.records.items():
        kept = fleet.clients[client].exchange.kept[ENCODER]
        drift = fleet.clients[client].objective.drift(kept)
        assert float(drift.norm()) > 0
        total = total + drift
        last = records[1]
        own = (last.after[ENCODER] - last.received[ENCODER]) / (last.reply.steps * kept["rate"])
        assert float(drift @ (own + kept["all"])) != 0
    assert_close(total, torch.zeros_like(total), rtol=0, atol=1e-2 * float(drift.norm()))


def test_feddyn_pulls_towards_the_received_model_without_the_client_s_own_updates():
    fleet = federated("feddyn")
    client, records = fleet.clients["home"], fleet.records["home"]
    own = sum(record.after[ENCODER] - record.received[ENCODER] for record in records[:2])
    assert_close(client.objective.shift(client.exchange.kept[ENCODER]), -own, rtol=1e-4, atol=1e-6)
    received = client.rows([ENCODER])[ENCODER]
    assert_close(client.exchange.anchors(client.shared.model)[ENCODER], received - own, rtol=1e-4, atol=1e-6)
    assert set(client.exchange.anchors(client.shared.model)) == {ENCODER}
