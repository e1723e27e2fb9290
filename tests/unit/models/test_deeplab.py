import numpy as np
import pytest
import torch
from torch import nn

from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.models import EncoderConfig, ModelConfig, MultiTaskModel
from fedhca2.models.layers import GivenDropout, draw_keep, dropping
from fedhca2.models.multitask import DeepLab


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
