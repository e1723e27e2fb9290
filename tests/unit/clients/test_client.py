import pytest
import torch
from torch.testing import assert_close

from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot, flatten
from small import clients, small

ENCODER, DECODER = Slot("encoder"), Slot("decoder", "semseg")
UP = {"encoder": "updates", "decoder": "updates"}


@pytest.fixture
def client():
    return clients(small())["outdoor-semseg"]


def row(client, slot):
    return flatten(client.personal.model.slots()[slot], client.layouts[slot])


def test_the_same_order_gives_the_same_reply():
    replies = [clients(small())["home"].perform(Order(0, evaluate=True, upload=UP)) for _ in range(2)]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)
    assert (replies[0].losses, replies[0].metrics) == (replies[1].losses, replies[1].metrics)


def test_workers_do_not_change_the_result():
    training = small().training.model_dump(mode="json")
    replies = [
        clients(small(training={**training, "workers": workers}))["home"].perform(Order(0, upload=UP))
        for workers in (0, 3)
    ]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)


@pytest.mark.parametrize("base", ["trained", "start", "nothing"])
def test_a_delivery_is_added_to_its_base(client, base):
    start = row(client, ENCODER)
    client.perform(Order(0, upload=UP))
    values = {"trained": row(client, ENCODER), "start": start, "nothing": torch.zeros_like(start)}
    sent = 0.1 * torch.randn_like(start)
    delivery = Delivery(base, (Addend(sent, (0.25,)), Addend(sent)))
    client.perform(Order(1, {ENCODER: delivery}, train=False))
    assert_close(row(client, ENCODER), values[base] + 0.25 * sent + sent)


def test_a_remembered_row_is_reported_on(client):
    sent = torch.randn(client.layouts[ENCODER].numel)
    client.perform(Order(0, upload=UP))
    reply = client.perform(Order(1, {ENCODER: Delivery("trained", (Addend(sent, (0.1,), remember=True),))}, upload=UP))
    assert_close(torch.tensor(reply.agreement[ENCODER]), (sent.double() @ reply.rows[ENCODER].double()).view(1).float())


def test_a_decoder_reports_on_every_layer(client):
    layout = client.layouts[DECODER]
    addend = Addend(torch.randn(layout.numel), (0.1,) * len(layout.layers), remember=True)
    client.perform(Order(0, upload=UP))
    reply = client.perform(Order(1, {DECODER: Delivery("trained", (addend,))}, upload=UP))
    assert len(reply.agreement[DECODER]) == 6


def test_nothing_is_reported_before_something_was_sent(client):
    assert client.perform(Order(0, upload=UP)).agreement == {}


def test_moments_outlast_the_round(client):
    client.perform(Order(0))
    client.perform(Order(1))
    steps = {int(state["step"]) for state in client.personal.optimizer.state.values()}
    assert steps == {2 * len(client.data.train)}


def test_evaluation_changes_nothing(client):
    before = {name: value.clone() for name, value in client.personal.model.state_dict().items()}
    client.evaluate()
    assert_close(dict(client.personal.model.state_dict()), before, rtol=0, atol=0)


def test_a_client_learns(client):
    losses = [client.perform(Order(round)).losses["semseg"] for round in (0, 0, 0, 0, 0, 0)]
    assert losses[-1] < losses[0]
