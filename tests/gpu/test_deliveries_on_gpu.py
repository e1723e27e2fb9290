"""A client on a GPU declines what it does on a CPU, and goes back to where it was."""

from math import inf, nan

import pytest
import torch

from fedhca2.clients import DeviceSlot
from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot
from small import clients, small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ENCODER = Slot("encoder")
UPLOAD = {"encoder": "updates"}


@pytest.fixture(params=["plain", "captured"])
def client(request):
    found = clients(small(model={"encoder": {"name": "swin_micro"}}))["outdoor-semseg"]
    found.device_slot = DeviceSlot(torch.device("cuda", 0), request.param)
    found.perform(Order(0, upload=UPLOAD))
    return found


def sent(client, value, **rest):
    row = torch.full((client.layouts[ENCODER].numel,), value)
    return Order(1, {ENCODER: Delivery("trained", (Addend(row),))}, **rest)


def same(state, before):
    return all(tensor.equal(before[name]) for name, tensor in state.tensors.items())


@pytest.mark.parametrize("value", [1e6, 1e19, 3e38, nan, inf])
def test_rows_that_no_training_makes_are_not_taken(client, value):
    before = client.state().tensors
    assert client.perform(sent(client, value, train=False)).declined
    assert same(client.state(), before)


def test_a_client_that_declined_trains_on(client):
    reply = client.perform(sent(client, nan, upload=UPLOAD))
    assert reply.declined
    assert reply.rows[ENCODER].isfinite().all()


def test_a_client_that_diverges_goes_back_to_before_it_took_anything(client):
    before = client.state().tensors
    client.training = client.training.model_copy(update={"learning_rate": 1e38})
    assert client.perform(sent(client, 1e-3, upload=UPLOAD)).failed
    assert same(client.state(), before)
