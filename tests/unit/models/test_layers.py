from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.models import Encoder, EncoderConfig, ModelConfig, MultiTaskModel
from fedhca2.models.layers import GivenDropout, draw_keep, dropping
from fedhca2.models.multitask import DeepLab
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


@pytest.mark.parametrize("stride", [8, 16, 32])
def test_the_coarsest_map_has_the_output_stride_and_outputs_the_image_size(stride):
    config = ModelConfig(encoder=EncoderConfig(name="test_resnet", output_stride=stride), decoder="deeplab")
    model, image = MultiTaskModel(config, {"semseg": 5}, (64, 96)).eval(), torch.zeros(1, 3, 64, 96)
    assert model.encoder(image)[-1].shape[-2:] == (64 // stride, 96 // stride)
    assert model(image)["semseg"].shape == (1, 5, 64, 96)


def test_it_has_the_parameters_of_the_released_decoder_and_head():
    width, maps, classes = 256, 512, 21
    scales = 2 * maps * width + 3 * 9 * maps * width  # the map, its mean, and three dilated convolutions
    norms = 7 * 2 * width
    head = classes * (width + 1)
    decoder = DeepLab([64, 128, 256, maps], width, stride=8)
    parameters = [*decoder.parameters(), *nn.Conv2d(width, classes, 1).parameters()]
    assert sum(map(torch.numel, parameters)) == scales + 5 * width * width + 9 * width * width + norms + head


def test_the_mean_reaches_every_pixel(rng):
    decoder = DeepLab([4, 4], 64, stride=8).eval()  # of 8 units, all may be 0
    image = torch.randn(1, 4, 40, 40, generator=rng, requires_grad=True)
    decoder([torch.zeros(1, 4, 80, 80), image])[0, :, 0, 0].sum().backward()
    assert image.grad[..., -1, -1].abs().sum() > 0


def dropped(seed=0, images=4, rate=0.5):
    layer = GivenDropout(rate)
    draws = draw_keep([layer], 1, images, np.random.default_rng(seed))
    with dropping([layer], draws[0]):
        return layer(torch.ones(images, 8, 32, 32))


@pytest.mark.parametrize("rate", [0.2, 0.5, 0.9])
def test_dropout_keeps_its_share_of_the_values_and_their_mean_independently(rate):
    output = dropped(rate=rate, images=8)
    assert (output == 0).float().mean() == pytest.approx(rate, abs=4 * (0.25 / output.numel()) ** 0.5)
    assert output[output > 0].unique().tolist() == [pytest.approx(1 / (1 - rate))]
    is_kept = output.sign()
    for axis in range(4):  # images, channels and neighbours
        assert (is_kept * is_kept.roll(1, axis)).mean() == pytest.approx((1 - rate) ** 2, abs=0.01)


def test_dropout_depends_on_its_draws_alone():
    outputs = []
    for seed, draws in ((1, 0), (2, 0), (2, 1)):
        torch.manual_seed(seed)
        outputs.append(dropped(seed=draws))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[1], outputs[2])


def test_deeplab_is_refused_with_batches_of_one():
    with pytest.raises(UserError, match=r"training\.batch_size"):
        Experiment.load("scenes_1c_small", ["model.decoder=deeplab", "training.batch_size=1"])
