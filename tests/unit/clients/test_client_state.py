from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from fedhca2.errors import UserError
from fedhca2.federation.in_process import InProcess
from fedhca2.messages import Addend, Delivery, Order
from fedhca2.params import Slot
from small_run import clients_of, small

ENCODER, DECODER = Slot("encoder"), Slot("decoder", "semseg")
UPDATES = {"encoder": "updates", "decoder": "updates"}
PARAMETERS = {"encoder": "parameters", "decoder": "parameters"}


def client(method="fedhca2", name="road", **changes):
    return clients_of(small(method, **changes))[name]


def trained(method="fedhca2", **changes):
    """A client with every kind of state."""
    found = client(method, **changes)
    found.perform(Order(0, upload=UPDATES))
    row = torch.full((found.layouts[ENCODER].numel,), 1e-3)
    found.perform(Order(1, {ENCODER: Delivery("trained", (Addend(row, (0.5,), remember=True),))}, upload=UPDATES))
    return found


def spoil(client):
    with torch.no_grad():
        next(client.shared.model.parameters()).fill_(float("nan"))


@pytest.mark.parametrize("method", ["fedhca2", "ditto", "fedamp", "fedbabu"])
def test_a_restored_client_goes_on_as_the_other_does(method):
    first, second = trained(method), client(method)
    second.restore(first.state())
    order = Order(2, evaluate=True, upload=UPDATES)
    replies = [replace(each.perform(order), seconds=0.0) for each in (first, second)]
    assert_close(replies[0].rows, replies[1].rows, rtol=0, atol=0)
    assert (replies[0].losses, replies[0].agreement) == (replies[1].losses, replies[1].agreement)


def test_a_state_is_a_copy():
    found = trained()
    before = found.state()
    found.perform(Order(2, upload=UPDATES))
    assert not before.tensors["personal/model/heads.semseg.0.weight"].equal(
        found.state().tensors["personal/model/heads.semseg.0.weight"]
    )


def test_another_clients_state_is_refused():
    with pytest.raises(ValueError, match="client 'shop', got one of 'road'"):
        client(name="shop").restore(client().state())


def test_a_state_that_does_not_fit_is_refused():
    state = client().state()
    del state.tensors["personal/model/heads.semseg.0.weight"]
    with pytest.raises(ValueError, match="does not fit the personal model"):
        client().restore(state)


def test_a_client_whose_loss_is_not_finite_says_so():
    found = client()
    spoil(found)
    assert found.perform(Order(0, upload=UPDATES)).failed == "the loss of 'semseg' became nan"


def explode(client):
    """Make the next training diverge."""
    client.training = client.training.model_copy(update={"learning_rate": 1e38})


def test_fine_tuning_that_diverged_is_undone():
    found = client("fedbabu")
    before = found.state().tensors
    explode(found)
    reply = found.perform(Order(3, finish=True, train=False))
    assert reply.failed
    assert all(before[name].equal(tensor) for name, tensor in found.state().tensors.items())


def test_a_gpu_without_memory_says_what_to_lower(monkeypatch):
    found = client()

    def full(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(found, "perform", full)
    with pytest.raises(UserError, match=r"client 'road': cpu is out of memory. Lower training.batch_size \(now 2\)"):
        InProcess([found]).perform({"road": Order(0)}, lambda *_: None)


PRIVATE = {"clip": 0.01, "noise": 0.0}


def test_what_leaves_is_clipped():
    reply = client(privacy=PRIVATE).perform(Order(0, upload=UPDATES))
    assert float(torch.cat(list(reply.rows.values())).double().norm()) == pytest.approx(0.01, rel=1e-6)


def test_parameters_that_leave_are_near_what_the_server_knows():
    found = client("fedavg", privacy=PRIVATE)
    start = found.rows((ENCODER, DECODER))
    sent = found.perform(Order(0, upload=PARAMETERS)).rows
    assert float(torch.cat([sent[slot] - start[slot] for slot in start]).norm()) == pytest.approx(0.01, rel=1e-2)


def test_later_parameters_are_near_those_that_left_before():
    found = client("fedamp", privacy=PRIVATE)
    first = found.perform(Order(0, upload=PARAMETERS)).rows
    second = found.perform(Order(1, upload=PARAMETERS)).rows
    assert float(torch.cat([second[slot] - first[slot] for slot in first]).norm()) == pytest.approx(0.01, rel=1e-2)


def test_agreement_tells_no_more_than_the_update_that_is_sent():
    found = client(privacy={"clip": 1.0, "noise": 1.0})
    row = torch.ones(found.layouts[ENCODER].numel)
    reply = found.perform(Order(0, {ENCODER: Delivery("trained", (Addend(row, (0.1,), True),))}, upload=UPDATES))
    assert reply.agreement[ENCODER][0] == pytest.approx(float(reply.rows[ENCODER].double().sum()))


NOISY = {"clip": 0.01, "noise": 1.0}


def noised(found, round=0):
    return found.perform(Order(round, upload=UPDATES)).rows[ENCODER]


def test_the_experiments_seed_does_not_tell_the_noise():
    """Two clients that differ only in their key train equal models and send unrelated rows."""
    sent = torch.stack([noised(client(privacy=NOISY)) for _ in range(2)])
    assert abs(float(torch.corrcoef(sent)[0, 1])) < 5 / sent.shape[1] ** 0.5


def test_a_key_has_256_bits_of_its_own():
    assert len({client(privacy=NOISY).exchange.noise_key for _ in range(3)}) == 3
    assert len(client().exchange.noise_key) == 32


def test_a_restored_client_sends_the_same_noise():
    first, second = client(privacy=NOISY), client(privacy=NOISY)
    second.restore(first.state())
    assert torch.equal(noised(first), noised(second))


def test_losses_stay_at_home_where_there_is_noise():
    assert not client(privacy={"clip": 1.0, "noise": 1.0}).perform(Order(0, upload=UPDATES)).losses
