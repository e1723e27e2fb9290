from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from fedhca2.models import Encoder, EncoderConfig
from fedhca2.models.layers import draw_keep, dropping
from small import clients, small

SIZE = (32, 32)


def encoder(name="swin_mini", drop_path=0.4):
    torch.manual_seed(0)
    return Encoder(EncoderConfig(name=name, drop_path=drop_path), SIZE).train()


def draws_for(own, images, steps=1):
    return draw_keep(own.drop_paths, steps, images, np.random.default_rng(0))


@pytest.fixture
def images(rng):
    return torch.randn(3, 3, *SIZE, generator=rng)


def test_rates_rise_linearly_over_the_blocks():
    rates = [path.drop_prob for path in encoder(drop_path=0.35).drop_paths]
    expected = [0.05 * block for block in range(1, 8) for _ in range(2)]  # the first of eight blocks is never left out
    assert rates == pytest.approx(expected)


def test_paths_are_left_out_at_their_rates_and_others_scaled_so_that_the_mean_stays():
    own = encoder()
    for path, actual in zip(own.drop_paths, draws_for(own, images=8, steps=2000).unbind(dim=1), strict=True):
        assert float((actual == 0).double().mean()) == pytest.approx(path.drop_prob, abs=4 * (0.25 / 16000) ** 0.5)
        assert_close(actual.unique(), torch.tensor([0, 1 / (1 - path.drop_prob)]))


def test_each_image_has_draws_of_its_own(images):
    own = encoder()
    keep = torch.ones(len(own.drop_paths), 3)
    keep[:, 1] = 0
    with dropping(own.drop_paths, keep):
        partly = own(images)
    whole = own.eval()(images)
    for actual, expected in zip(partly, whole, strict=True):
        same = [torch.allclose(*pair, rtol=1e-4, atol=1e-5) for pair in zip(actual, expected, strict=True)]
        assert same == [True, False, True]


def test_evaluation_leaves_nothing_out_and_batches_hold_draws_for_such_paths_alone(images):
    assert next(federation(0.0)["home"].batches(0)).keep is None
    assert_close(encoder().eval()(images), encoder(drop_path=0.0).eval()(images), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["swin_micro", "resnet18", "convnext_atto", "tiny_vit_5m_224"])
def test_no_backbone_draws_by_itself_or_trains_without_draws(name, images):
    own = encoder(name)
    before = torch.get_rng_state()
    with dropping(own.drop_paths, draws_for(own, images=3)[0]):
        own(images)
    assert torch.equal(torch.get_rng_state(), before)
    with pytest.raises(RuntimeError, match="expected draws in training"):
        own(images)


def federation(drop_path, **changes):
    return clients(small(model={"encoder": {"name": "swin_micro", "drop_path": drop_path}}, **changes))


def keeps(client, epoch=0):
    return torch.stack([batch.keep for batch in client.batches(epoch)])


def test_draws_depend_on_seed_client_epoch_and_step_alone():
    members = federation(0.4)
    home, road = members["home"], members["outdoor-semseg"]
    keeps(road)
    assert keeps(home).equal(keeps(federation(0.4)["home"]))
    others = [keeps(home, epoch=1), keeps(federation(0.4, seed=1)["home"]), keeps(road)[: len(keeps(home))]]
    assert not any(keeps(home).equal(other) for other in [*others, keeps(home).roll(1, 0)])


def test_a_step_trains_with_the_draws_of_its_batch():
    home, other = federation(0.4)["home"], federation(0.4)["home"]
    batch = next(home.batches(0))
    home.personal.train_epoch([batch], 1e-3)
    other.personal.train_epoch([replace(batch, keep=torch.ones_like(batch.keep))], 1e-3)
    states = [client.personal.model.encoder.state_dict() for client in (home, other)]
    assert not all(value.equal(states[1][name]) for name, value in states[0].items())
