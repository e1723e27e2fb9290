from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from fedhca2.errors import UserError
from fedhca2.federation.in_process import InProcess
from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot, flatten
from small_run import SETTINGS, clients_of, small

ENCODER, DECODER = Slot("encoder"), Slot("decoder", "semseg")
UPDATES = {"encoder": "updates", "decoder": "updates"}
PARAMETERS = {"encoder": "parameters", "decoder": "parameters"}


def client(method="fedhca2", name="road", **changes):
    return clients_of(small(method, **changes))[name]


def trained(method="fedhca2", **changes):
    """A client with every kind of state."""
    member = client(method, **changes)
    member.perform(Order(0, upload=UPDATES))
    row = torch.full((member.layouts[ENCODER].numel,), 1e-3)
    member.perform(Order(1, {ENCODER: Delivery("trained", (Addend(row, (0.5,), remember=True),))}, upload=UPDATES))
    return member


@pytest.mark.parametrize("method", ["fedhca2", "ditto", "fedamp", "fedbabu"])
def test_a_restored_client_goes_on_as_the_other_does(method):
    first, second = trained(method), client(method)
    state, before = first.state(), first.state()
    second.restore(state)
    order = Order(2, evaluate=True, upload=UPDATES)
    replies = [replace(each.perform(order), seconds=0.0) for each in (first, second)]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)
    assert (replies[0].losses, replies[0].agreement) == (replies[1].losses, replies[1].agreement)
    assert all(tensor.equal(before.tensors[name]) for name, tensor in state.tensors.items())  # a state is a copy


def test_a_state_of_another_client_or_that_does_not_fit_is_refused():
    state = client().state()
    with pytest.raises(ValueError, match="client 'shop', got one of 'road'"):
        client(name="shop").restore(state)
    del state.tensors["personal/model/heads.semseg.0.weight"]
    with pytest.raises(ValueError, match="does not fit the personal model"):
        client().restore(state)


def test_a_client_whose_loss_is_not_finite_says_so():
    member = client()
    with torch.no_grad():
        next(member.shared.model.parameters()).fill_(float("nan"))
    assert member.perform(Order(0, upload=UPDATES)).failed == "the loss of 'semseg' became nan"


def test_fine_tuning_that_diverged_is_undone():
    member = client("fedbabu")
    before = member.state().tensors
    member.training = member.training.model_copy(update={"learning_rate": 1e38})
    assert member.perform(Order(3, finish=True, train=False)).failed
    assert all(before[name].equal(tensor) for name, tensor in member.state().tensors.items())


def test_a_gpu_without_memory_says_what_to_lower(monkeypatch):
    member = client()

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(member, "perform", full)
    with pytest.raises(UserError, match=r"client 'road': cpu is out of memory. Lower training.batch_size \(now 2\)"):
        InProcess([member]).perform({"road": Order(0)}, lambda *_: None)


PRIVATE = {"clip": 0.01, "noise": 0.0}


def length(rows):
    return float(torch.cat(list(rows.values())).double().norm())


def test_private_parameters_stay_near_those_that_the_server_already_has():
    member = client("fedamp", privacy=PRIVATE)
    published = member.rows((ENCODER, DECODER))
    for round in range(2):
        sent = member.perform(Order(round, upload=PARAMETERS)).rows
        assert length({slot: row - published[slot] for slot, row in sent.items()}) == pytest.approx(0.01, rel=1e-2)
        published = sent


NOISY = {"clip": 1.0, "noise": 1.0}


def test_agreement_and_losses_tell_no_more_than_the_update_that_is_sent():
    member = client(privacy=NOISY)
    row = torch.ones(member.layouts[ENCODER].numel)
    reply = member.perform(Order(0, {ENCODER: Delivery("trained", (Addend(row, (0.1,), True),))}, upload=UPDATES))
    assert reply.agreement[ENCODER][0] == pytest.approx(float(reply.rows[ENCODER].double().sum()))
    assert not reply.losses


def test_noise_has_a_key_of_256_bits_which_the_experiments_seed_does_not_tell_and_a_state_keeps():
    """Two clients that differ only in their key train equal models and send unrelated rows."""
    first, other, restored = (client(privacy=NOISY) for _ in range(3))
    restored.restore(first.state())
    sent, unrelated, same = (each.perform(Order(0, upload=UPDATES)).rows[ENCODER] for each in (first, other, restored))
    assert abs(float(torch.corrcoef(torch.stack([sent, unrelated]))[0, 1])) < 5 / len(sent) ** 0.5
    assert torch.equal(sent, same)
    assert len(first.exchange.noise_key) == 32


def row(client, slot):
    return flatten(client.personal.model.slots()[slot], client.layouts[slot])


@pytest.mark.parametrize("workers", [0, 3])
def test_the_same_order_gives_the_same_reply_with_any_number_of_workers(workers):
    training = {**SETTINGS["training"], "workers": workers}
    both = client(name="home"), client(name="home", training=training)
    replies = [each.perform(Order(0, evaluate=True, upload=UPDATES)) for each in both]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)
    assert (replies[0].losses, replies[0].metrics) == (replies[1].losses, replies[1].metrics)


@pytest.mark.parametrize("base", ["trained", "start", "nothing"])
def test_a_delivery_is_added_to_its_base(base):
    member = client()
    start = row(member, ENCODER)
    member.perform(Order(0, upload=UPDATES))
    values = {"trained": row(member, ENCODER), "start": start, "nothing": torch.zeros_like(start)}
    sent = 0.1 * torch.randn_like(start)
    delivery = Delivery(base, (Addend(sent, (0.25,)), Addend(sent)))
    member.perform(Order(1, {ENCODER: delivery}, train=False))
    assert_close(row(member, ENCODER), values[base] + 0.25 * sent + sent)


@pytest.mark.parametrize("slot", [ENCODER, DECODER])
def test_a_remembered_row_is_reported_on_for_each_weight_that_scaled_it(slot):
    member = client()
    layout = member.layouts[slot]
    sent, weights = torch.randn(layout.numel), 1 if slot == ENCODER else len(layout.layers)
    assert member.perform(Order(0, upload=UPDATES)).agreement == {}
    delivery = Delivery("trained", (Addend(sent, (0.1,) * weights, remember=True),))
    reply = member.perform(Order(1, {slot: delivery}, upload=UPDATES))
    assert len(reply.agreement[slot]) == weights
    assert sum(reply.agreement[slot]) == pytest.approx(float(sent.double() @ reply.rows[slot].double()), rel=1e-6)


def test_a_client_learns_from_training_and_not_from_evaluation():
    member = client()
    before = {name: value.clone() for name, value in member.personal.model.state_dict().items()}
    member.evaluate()
    assert_close(dict(member.personal.model.state_dict()), before, rtol=0, atol=0)
    losses = [member.perform(Order(0)).losses["semseg"] for _ in range(6)]
    assert losses[-1] < losses[0]


def test_bf16_on_a_cpu_computes_in_fewer_bits_and_keeps_parameters_whole():
    members = [client(name="home", training={**SETTINGS["training"], "precision": each}) for each in ("fp32", "bf16")]
    full, half = (member.perform(Order(0, upload=UPDATES, evaluate=True)) for member in members)
    assert half.losses != full.losses
    assert half.losses == pytest.approx(full.losses, rel=0.02)
    tensors = [*members[1].personal.model.parameters(), *half.rows.values()]
    assert {each.dtype for each in tensors} == {torch.float32}
