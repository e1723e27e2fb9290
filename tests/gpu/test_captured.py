"""Captured and compiled training on a GPU, compared with plain training."""

import gc
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from threading import Event

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from fedhca2.clients import DeviceSlot, on_device
from fedhca2.clients.training import LocalTerms, set_mode, take_step, task_loss
from fedhca2.compiling import compiled
from fedhca2.federation.in_process import InProcess
from fedhca2.messages import Order
from fedhca2.models.multitask import Head
from fedhca2.tasks import TASKS
from small import SMALL, clients, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)
FP32 = {
    "training": {"batch_size": 4, "precision": "fp32"},
    "model": {"encoder": {"name": "swin_micro", "drop_path": 0.2}},
    "tasks": {"things": "multilabel", "people": "regression"},
    "clients": [*SMALL["clients"], {"name": "crowd", "data": "outdoor", "tasks": ["things", "people", "sal"]}],
}
MATFL = {"optimizer": {"kind": "adam", "amsgrad": True}, "loss_weights": False}
SGD = {"optimizer": {"kind": "sgd", "momentum": 0.9}}


def trained(name, place, terms=lambda model: LocalTerms(), epochs=2, steps=None, experiment=None, **training):
    """A client's model, moments and losses after epochs of training, or some of their steps, at a device slot."""
    client = clients(experiment or small(**FP32 | {"training": {**FP32["training"], **training}}))[name]
    client.device_slot = place
    with on_device(client):
        losses = [
            client.personal.train_epoch(
                islice(client.batches(epoch), steps), 1e-3, terms(client.personal.model), captures=place.captures
            )
            for epoch in range(epochs)
        ]
    state = {key: value.clone() for key, value in client.personal.model.state_dict().items()}
    held = client.personal.optimizer.state.values()
    moments = {kind: [own[kind].clone() for own in held] for kind in next(iter(held))}
    return state, moments, losses


def flat(tensors):
    """The values of all floating-point tensors."""
    return torch.cat([value.cpu().flatten() for value in tensors if value.is_floating_point()])


def pulled(model):
    anchors = [(name, p.detach() + 0.1) for name, p in model.named_parameters() if not name.startswith("heads.")]
    return LocalTerms(pull=0.5, pulled=anchors)


def frozen(model):
    return LocalTerms(frozen=frozenset({"decoder", "head"}))


def with_effect(name, terms):
    """Which values of each parameter a loss depends on: not biases of keys or before a BatchNorm.

    Adam follows the rounding of the others.
    """
    client = clients(small(**FP32))[name]
    model = client.personal.model.double()
    set_mode(model, terms(model).frozen)
    batch = next(client.batches(0)).map(lambda value: value.double() if value.is_floating_point() else value)
    take_step(model, client.training.optimizer.build(model.parameters(), 0.0, 0.0), batch, "fp32", terms(model))
    slopes = {key: p.grad.abs() for key, p in model.named_parameters() if p.grad is not None}
    steepest = max(slope.max() for slope in slopes.values())
    return {key: slope > 1e-12 * steepest for key, slope in slopes.items()}


def decided(state, effective):
    """What a loss decides of a state; running means follow biases before a BatchNorm, which it may not decide."""
    adrift = not all(values.any() for values in effective.values())
    held = {key: value for key, value in state.items() if not (adrift and key.endswith("running_mean"))}
    return {key: value.cpu()[effective.get(key, ...)] for key, value in held.items()}


TERMS = pytest.mark.parametrize(
    "terms", [lambda model: LocalTerms(), pulled, frozen], ids=["plain", "pulled", "frozen"]
)


@TERMS
@pytest.mark.parametrize("name", ["outdoor-semseg", "home", "crowd"])
def test_a_captured_epoch_is_a_plain_one(terms, name):
    expected = trained(name, DeviceSlot(GPU, "plain"), terms)
    found = trained(name, DeviceSlot(GPU, "captured"), terms)
    states = (decided(each[0], with_effect(name, terms)) for each in (found, expected))
    assert_close(*states, rtol=1e-3, atol=2e-4)
    assert_close(found[1], expected[1], rtol=1e-2, atol=1e-3)
    assert_close(found[2], expected[2], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("step", ["captured", "compiled"])
def test_captured_gradients_add_up_as_plain_ones_do(step):
    def gradients(place):
        client = clients(small(**FP32))["home"]
        client.device_slot = place
        with on_device(client):
            for batch in islice(client.batches(0), 2):
                client.personal.add_gradients(batch, place.captures)
            named = client.personal.model.named_parameters()
            return {name: each.grad.cpu() for name, each in named if each.grad is not None}

    expected, found = gradients(DeviceSlot(GPU, "plain")), gradients(DeviceSlot(GPU, step))
    assert found.keys() == expected.keys()
    assert_close(found, expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("name", ["outdoor-semseg", "home"])
def test_equal_epochs_end_with_equal_bits_whatever_else_the_gpu_does(name):
    ended = Event()

    def disturb():
        with torch.cuda.stream(torch.cuda.Stream()):
            values = torch.randn(512, 512, device=GPU)
            while not ended.is_set():
                for _ in range(100):
                    values = torch.tanh(values @ values)
                torch.cuda.current_stream().synchronize()

    expected = trained(name, DeviceSlot(GPU), epochs=8, precision="bf16")
    with ThreadPoolExecutor(1) as pool:
        disturbing = pool.submit(disturb)
        try:
            found = [trained(name, DeviceSlot(GPU), epochs=8, precision="bf16") for _ in range(5)]
        finally:
            ended.set()
        disturbing.result()
    assert all(flat(each[0].values()).equal(flat(expected[0].values())) for each in found)


def test_a_captured_round_of_heads_and_then_the_encoder_is_a_plain_one():
    states = []
    for step in ("plain", "captured"):
        client = clients(small(**FP32, method="fedrep"))["home"]
        client.device_slot = DeviceSlot(GPU, step)
        for round in range(2):
            client.perform(Order(round))
        states.append({key: value.cpu() for key, value in client.personal.model.state_dict().items()})
    assert_close(states[1], states[0], rtol=1e-3, atol=2e-4)


@pytest.mark.parametrize(
    ("training", "moments"),
    [(MATFL, {"step", "exp_avg", "exp_avg_sq", "max_exp_avg_sq"}), (SGD, {"momentum_buffer"})],
    ids=["adam", "sgd"],
)
def test_a_captured_epoch_of_another_optimiser_is_a_plain_one(training, moments):
    expected = trained("outdoor-normals", DeviceSlot(GPU, "plain"), **training)
    found = trained("outdoor-normals", DeviceSlot(GPU, "captured"), **training)
    assert set(found[1]) == moments
    assert_close(found[0], expected[0], rtol=1e-3, atol=2e-4)
    assert_close(found[1], expected[1], rtol=1e-2, atol=1e-3)


def test_a_captured_step_begins_every_round_with_a_fresh_optimiser():
    optimizer = {"kind": "adam", "amsgrad": True, "reset": "every_round"}
    training = {**SMALL["training"], "precision": "fp32", "optimizer": optimizer}
    place, states = DeviceSlot(GPU, "captured"), []
    first, second = (clients(small(**FP32 | {"training": training}))["outdoor-normals"] for _ in range(2))
    first.device_slot = second.device_slot = place
    first.perform(Order(0))
    second.personal.model.load_state_dict(first.personal.model.state_dict())
    for client in (first, second):
        client.perform(Order(1))
        states.append({key: value.clone() for key, value in client.personal.model.state_dict().items()})
    assert_close(states[0], states[1], rtol=1e-3, atol=2e-4)


@TERMS
@pytest.mark.parametrize("training", [{}, MATFL], ids=["adamw", "adam"])
def test_a_compiled_step_has_the_gradient_of_a_plain_one(terms, training, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    _, expected, losses = trained("home", DeviceSlot(GPU, "plain"), terms, epochs=1, steps=1, **training)
    _, found, found_losses = trained("home", DeviceSlot(GPU, "compiled"), terms, epochs=1, steps=1, **training)
    # After one step a tenth of the gradient. Before a BatchNorm, a bias has none except for rounding.
    whole = flat(expected["exp_avg"]).norm()
    for gradient, other in zip(found["exp_avg"], expected["exp_avg"], strict=True):
        assert (gradient - other).norm() <= 1e-4 * other.norm() + 1e-6 * whole
    assert_close(found_losses, losses, rtol=1e-5, atol=1e-6)


def test_a_compiled_loss_has_the_gradient_of_a_plain_one_however_large_the_logits():
    def gradient(loss):
        torch.manual_seed(0)
        head = Head(64, 21).to(GPU)
        with torch.no_grad():
            head[2].bias += 300  # the same for all classes: nothing changes but rounding
        decoded = torch.randn(4, 64, 16, 16, device=GPU, dtype=torch.bfloat16)
        label = torch.randint(21, (4, 1, 64, 64), device=GPU)
        with torch.autocast("cuda", torch.bfloat16):
            loss(TASKS["semseg"], head, decoded, label).backward()
        return head[2].bias.grad

    expected = gradient(task_loss)
    assert (gradient(compiled(task_loss)) - expected).norm() <= 0.01 * expected.norm()


def test_compiled_epochs_learn_as_plain_ones(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    start = flat(clients(small(**FP32))["home"].personal.model.state_dict().values())
    expected, _, losses = trained("home", DeviceSlot(GPU, "plain"))
    found, _, found_losses = trained("home", DeviceSlot(GPU, "compiled"))
    assert_close(found_losses, losses, rtol=1e-2, atol=1e-3)
    # Adam moves a value whose gradient is nothing but rounding as far as any other: single values may differ.
    assert (flat(found.values()) - flat(expected.values())).norm() <= 2e-2 * (flat(expected.values()) - start).norm()


def test_a_captured_step_in_mixed_precision_is_a_plain_one():
    state, moments, losses = trained("home", DeviceSlot(GPU, "plain"), epochs=1, steps=1, precision="bf16")
    found, found_moments, found_losses = trained("home", DeviceSlot(GPU), epochs=1, steps=1, precision="bf16")
    tables = {key for key in state if key.endswith("bias_table")}  # their gradients are summed in another order
    assert tables
    assert_close({key: found[key] for key in tables}, {key: state[key] for key in tables}, rtol=0, atol=1e-5)
    assert_close(found_moments, moments, rtol=1e-5, atol=1e-8)
    assert_close(found_losses, losses, rtol=0, atol=0)
    assert all(found[key].equal(value) for key, value in state.items() if key not in tables)


def test_a_captured_step_serves_several_clients_in_turn():
    place, experiment = DeviceSlot(GPU), small(**FP32)
    first = trained("outdoor-semseg", place, experiment=experiment)
    trained("outdoor-semseg", place, pulled, experiment=experiment)
    again = trained("outdoor-semseg", place, experiment=experiment)
    assert_close(again[0], first[0], rtol=1e-3, atol=2e-4)
    assert len(place.captures.graphs) == 2


def test_a_gpu_trains_as_the_cpu_does():
    expected = trained("home", DeviceSlot(torch.device("cpu")), epochs=1)
    found = trained("home", DeviceSlot(GPU), epochs=1)
    assert_close(
        found[0], expected[0], rtol=0, atol=5e-3
    )  # Adam's first steps are as large as the rate, whatever the gradient
    assert_close(found[2], expected[2], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("kind", ["captured", "compiled"])
@pytest.mark.parametrize("name", ["outdoor-semseg", "home", "crowd"])
def test_captured_evaluation_is_the_plain_one(name, kind):
    client = clients(small(**FP32))[name]
    client.device_slot = DeviceSlot(torch.device("cpu"))
    expected = client.evaluate()
    client.device_slot = DeviceSlot(GPU, kind)
    found = client.evaluate()
    assert_close(
        {t: next(iter(v.values())) for t, v in found.items()},
        {t: next(iter(v.values())) for t, v in expected.items()},
        rtol=2e-2,
        atol=0.2,
    )


def test_a_captured_pass_follows_the_weights_of_a_backbone_that_keeps_what_it_computed():
    client = clients(small(**FP32 | {"model": {"encoder": {"name": "tiny_vit_5m_224"}}}))["outdoor-normals"]
    model, slot = client.personal.model.to(GPU), DeviceSlot(GPU)
    [image] = [batch.image for batch in client.data.val.in_order(slot.feed)]
    with torch.inference_mode():
        slot.captures.forward(model, image, "fp32")(image)
        for name, parameter in model.named_parameters():
            if "attention_biases" in name:
                parameter.add_(torch.randn_like(parameter))
        found = slot.captures.forward(model, image, "fp32")(image)["normals"]
        expected = TASKS["normals"].predict(model.eval()(image)["normals"])
    assert_close(found, expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("kind", ["captured", "compiled"])
def test_the_feed_gives_what_the_cpu_prepares(kind):
    data = clients(small(**FP32))["home"].data
    expected = list(data.train.training(seed=0, client="home", epoch=3))
    batches = data.train.training(seed=0, client="home", epoch=3, feed=DeviceSlot(GPU, kind).feed)
    found = [batch.map(torch.clone) for batch in batches]
    assert len(found) == len(expected)
    for batch, other in zip(found, expected, strict=True):
        assert_close(batch.map(Tensor.cpu).labels, other.labels, rtol=0, atol=1e-6)
        # Colours are cut to whole grey levels: where a GPU interpolates to just below one, a pixel differs.
        assert ((batch.image.cpu() - other.image).abs() > 1e-3).float().mean() <= 1e-3


def test_memory_of_the_gpu_does_not_grow_with_the_clients():
    def peak(copies):
        rooms = {**SMALL["data"]["indoor"], "train": 8 * copies}
        entry = {"name": "home", "data": "indoor", "tasks": ["semseg"], "copies": copies}
        crowd = list(clients(small(**FP32 | {"data": {"indoor": rooms}, "clients": [entry]})).values())
        gc.collect()
        before = torch.cuda.memory_allocated()
        fleet = InProcess(crowd, [DeviceSlot(GPU)])
        fleet.perform({client.name: Order(0) for client in crowd}, lambda *_: None)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        fleet.perform({client.name: Order(1) for client in crowd}, lambda *_: None)
        return torch.cuda.max_memory_allocated() - before

    few = peak(1)
    assert peak(5) <= 1.1 * few


@pytest.mark.parametrize("kind", ["captured", "compiled"])
def test_adapters_of_a_plain_transformer_train_as_in_plain_steps(kind, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    model = {"encoder": {"name": "test_vit", "adapters": {"rank": 2}}, "feature_width": 8, "decoder_width": 8}
    states = []
    for step in ("plain", kind):
        client = clients(small(**FP32 | {"model": model}))["home"]
        start = {key: value.clone() for key, value in client.personal.model.state_dict().items()}
        client.device_slot = DeviceSlot(GPU, step)
        client.perform(Order(0))
        states.append({key: value.cpu() for key, value in client.personal.model.state_dict().items()})
        assert all(states[-1][name].equal(start[name]) for name in client.personal.model.fixed)
    expected, found = (flat(state.values()) for state in states)
    assert (found - expected).norm() <= 2e-2 * (expected - flat(start.values())).norm()
