import pytest
import torch
from torch.testing import assert_close

from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot, flatten
from small import SMALL, clients, small

ENCODER, DECODER = Slot("encoder"), Slot("decoder", "semseg")
UP = {"encoder": "updates", "decoder": "updates"}


@pytest.fixture
def client():
    return clients(small())["outdoor-semseg"]


def row(client, slot):
    return flatten(client.personal.model.slots()[slot], client.layouts[slot])


@pytest.mark.parametrize("workers", [0, 3])
def test_the_same_order_gives_the_same_reply_with_any_number_of_workers(workers):
    training = {**SMALL["training"], "workers": workers}
    both = [clients(small(**changes))["home"] for changes in ({}, {"training": training})]
    replies = [client.perform(Order(0, evaluate=True, upload=UP)) for client in both]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)
    assert (replies[0].losses, replies[0].metrics) == (replies[1].losses, replies[1].metrics)


@pytest.mark.parametrize("base", ["trained", "start", "nothing"])
def test_a_delivery_is_added_to_its_base(client, base):
    start = row(client, ENCODER)
    client.perform(Order(0, upload=UP))
    values = {"trained": row(client, ENCODER), "start": start, "nothing": torch.zeros_like(start)}
    sent = 0.1 * torch.randn_like(start)
    delivery = Delivery(base, (Addend(sent, (0.25,)), Addend(sent)))
    client.perform(Order(1, {ENCODER: delivery}, train=False))
    assert_close(row(client, ENCODER), values[base] + 0.25 * sent + sent)


@pytest.mark.parametrize("slot", [ENCODER, DECODER])
def test_a_remembered_row_is_reported_on_for_each_weight_that_scaled_it(client, slot):
    layout = client.layouts[slot]
    sent, weights = torch.randn(layout.numel), 1 if slot == ENCODER else len(layout.layers)
    assert client.perform(Order(0, upload=UP)).agreement == {}
    delivery = Delivery("trained", (Addend(sent, (0.1,) * weights, remember=True),))
    reply = client.perform(Order(1, {slot: delivery}, upload=UP))
    assert len(reply.agreement[slot]) == weights
    assert sum(reply.agreement[slot]) == pytest.approx(float(sent.double() @ reply.rows[slot].double()), rel=1e-6)


def test_a_client_learns_from_training_and_not_from_evaluation(client):
    before = {name: value.clone() for name, value in client.personal.model.state_dict().items()}
    client.evaluate()
    assert_close(dict(client.personal.model.state_dict()), before, rtol=0, atol=0)
    losses = [client.perform(Order(0)).losses["semseg"] for _ in range(6)]
    assert losses[-1] < losses[0]


def test_bf16_on_a_cpu_computes_in_fewer_bits_and_keeps_parameters_whole():
    members = [clients(small(training={**SMALL["training"], "precision": each}))["home"] for each in ("fp32", "bf16")]
    full, half = (member.perform(Order(0, upload=UP, evaluate=True)) for member in members)
    assert half.losses != full.losses
    assert half.losses == pytest.approx(full.losses, rel=0.02)
    tensors = [*members[1].personal.model.parameters(), *half.rows.values()]
    assert {each.dtype for each in tensors} == {torch.float32}
