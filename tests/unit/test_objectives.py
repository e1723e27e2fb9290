"""Pulls towards anchors; SCAFFOLD and FedDyn on quadratics, against the papers' algorithms, whose servers keep rows."""

import numpy as np
import pytest
import torch

from fedhca2.aggregation import Member, Rows
from fedhca2.messages import Addend, Delivery
from fedhca2.methods import METHODS, resolve
from fedhca2.objectives import Attracted, ControlVariate, Dynamic, add_pull, squared_distance
from fedhca2.params import Layout

DICE = np.random.default_rng(0)
N, SIZE, STEPS, RATE, ROUNDS = 3, 4, 5, 0.05, 6
CURVES = [np.diag(DICE.uniform(0.5, 2, SIZE)) for _ in range(N)]
CENTRES = [DICE.normal(size=SIZE) for _ in range(N)]
LAYOUT = Layout(("x.weight",), ((SIZE,),))


def gradient(client, at):
    return CURVES[client] @ (at - CENTRES[client])


def federate(name, **settings):
    """SGD on every client's quadratic, with what the method adds; returns the clients' models after each round."""
    method = resolve(name, settings)
    models, kept, history = [torch.zeros(SIZE, dtype=torch.float64)] * N, [{} for _ in range(N)], []
    for _ in range(ROUNDS):
        updates = []
        for client in range(N):
            start = model = models[client]
            shift, drift = method.local.shift(kept[client]), method.local.drift(kept[client])
            anchor = start if shift is None else start + shift
            for _ in range(STEPS):
                step = torch.from_numpy(gradient(client, model.numpy())) + method.local.pull * (model - anchor)
                model = model - RATE * (step if drift is None else step + drift)
            kept[client] = method.local.learn(kept[client], model - start, STEPS, RATE)
            updates.append(model - start)
        members = [Member(str(client), "g", steps=STEPS) for client in range(N)]
        rows = Rows(members, LAYOUT, updates)
        (blend,) = method.encoder.mixing(method.encoder.products(rows, 0), members, LAYOUT).blends
        addend = Addend((blend.weights[0] @ torch.stack(updates)), (blend.scale,))
        for client in range(N):
            row = models[client] + addend.row * addend.scale[0]
            models[client], kept[client] = method.local.take(kept[client], row, Delivery("start", (addend,)))
        history.append(torch.stack(models).numpy())
    return history


def scaffold():
    """Karimireddy et al., Algorithm 1 with option II."""
    x, c, own, history = np.zeros(SIZE), np.zeros(SIZE), np.zeros((N, SIZE)), []
    for _ in range(ROUNDS):
        moved, changed = np.zeros((N, SIZE)), np.zeros((N, SIZE))
        for i in range(N):
            y = x.copy()
            for _ in range(STEPS):
                y -= RATE * (gradient(i, y) - own[i] + c)
            new = own[i] - c + (x - y) / (STEPS * RATE)
            moved[i], changed[i], own[i] = y - x, new - own[i], new
        x, c = x + moved.mean(axis=0), c + changed.mean(axis=0)
        history.append(x)
    return history


def feddyn(alpha):
    """Acar et al., Algorithm 1, with SGD for the inner problem."""
    x, h, own, history = np.zeros(SIZE), np.zeros(SIZE), np.zeros((N, SIZE)), []
    for _ in range(ROUNDS):
        ends = []
        for i in range(N):
            y = x.copy()
            for _ in range(STEPS):
                y -= RATE * (gradient(i, y) - own[i] + alpha * (y - x))
            own[i] -= alpha * (y - x)
            ends.append(y)
        h -= alpha * np.mean([y - x for y in ends], axis=0)
        x = np.mean(ends, axis=0) - h / alpha
        history.append(x)
    return history


@pytest.mark.parametrize(("name", "expected"), [("scaffold", scaffold()), ("feddyn", feddyn(0.7))])
def test_every_client_has_the_paper_s_model_after_every_round(name, expected):
    actual = federate(name, **({"strength": 0.7} if name == "feddyn" else {}))
    for models, x in zip(actual, expected, strict=True):
        np.testing.assert_allclose(models, np.tile(x, (N, 1)), rtol=1e-6, atol=1e-9)


def test_with_few_clients_in_a_round_the_mean_direction_changes_by_their_share():
    local, zero = ControlVariate(share=0.25), torch.zeros(1)
    assert local.learn({}, zero, 4, 0.0) == {}  # nothing is learned from steps without a length
    kept = local.learn({}, zero, 1, 1.0)
    for mean in (-4.0, -8.0):
        _, kept = local.take(kept, zero, Delivery("start", (Addend(torch.tensor([mean])),)))
    torch.testing.assert_close(kept["all"], torch.tensor([0.75 * 1.0 + 0.25 * 8.0]))


@pytest.mark.parametrize("local", [ControlVariate(), Dynamic()])
def test_objectives_that_keep_rows_need_updates(local):
    with pytest.raises(ValueError, match="expected aggregators of updates"):
        resolve("fedavg", {"local": local.model_dump()})


PULLING = {"fedprox": 0.01, "ditto": 0.1, "fedamp": 1.0}  # as the papers say


@pytest.mark.parametrize(("name", "pull"), PULLING.items())
def test_the_pull_added_to_gradients_is_that_of_the_loss_bit_for_bit_and_anchors_get_none(name, pull, rng):
    assert (METHODS[name].local.pull, Attracted(lam=3, alpha=2).pull) == (pull, 1.5)
    start, anchors = torch.randn(2, 1000, generator=rng)
    anchors.requires_grad_()
    actual, expected = start.clone().requires_grad_(), start.clone().requires_grad_()
    (expected.sin().sum() + 0.5 * pull * squared_distance([expected], [anchors])).backward()
    torch.testing.assert_close(expected.grad, start.cos() + pull * (start - anchors.detach()))
    assert anchors.grad is None
    actual.sin().sum().backward()
    add_pull([actual], [anchors], pull)
    assert actual.grad.equal(expected.grad)
    unused, frozen = torch.tensor([2.0], requires_grad=True), torch.tensor([2.0])
    add_pull([unused, frozen], [torch.zeros(1), torch.zeros(1)], pull=3.0)
    assert (unused.grad, frozen.grad) == (torch.tensor([6.0]), None)
