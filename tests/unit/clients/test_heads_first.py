"""FedRep: a round trains decoders and heads below an encoder that rests, and then the encoder below these."""

import pytest
import torch

from fedhca2.clients.training import Learner
from fedhca2.messages import Order
from fedhca2.methods import resolve
from fedhca2.objectives import DECODER_AND_HEAD, ENCODER, HeadsFirst
from fedhca2.params import PARTS
from small import clients, small


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
