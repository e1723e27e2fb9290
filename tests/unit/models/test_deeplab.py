import pytest
import torch

from fedhca2.models import EncoderConfig, ModelConfig, MultiTaskModel, build_model
from fedhca2.models.multitask import DeepLab


@pytest.mark.parametrize("stride", [8, 16, 32])
def test_outputs_have_the_size_of_the_image(stride):
    config = ModelConfig(encoder=EncoderConfig(name="test_resnet", output_stride=stride), decoder="deeplab")
    outputs = MultiTaskModel(config, {"semseg": 5}, (64, 96)).eval()(torch.zeros(1, 3, 64, 96))
    assert tuple(outputs["semseg"].shape) == (1, 5, 64, 96)


@pytest.mark.parametrize(("stride", "size"), [(8, 12), (16, 6), (32, 3)])
def test_the_coarsest_map_has_the_output_stride(stride, size):
    config = ModelConfig(encoder=EncoderConfig(name="test_resnet", output_stride=stride))
    maps = MultiTaskModel(config, {}, (96, 96)).encoder(torch.zeros(1, 3, 96, 96))
    assert maps[-1].shape[-1] == size


def test_a_single_image_can_be_trained_on():
    config = ModelConfig(encoder=EncoderConfig(name="test_resnet"), decoder="deeplab", decoder_width=8)
    model = build_model(config, {"semseg": 5}, (64, 64), seed=0, client="a").train()
    assert model(torch.zeros(1, 3, 64, 64))["semseg"].isfinite().all()


def test_the_mean_reaches_every_pixel(rng):
    decoder = DeepLab([4, 4], 8, stride=8).eval()
    image = torch.randn(1, 4, 40, 40, generator=rng, requires_grad=True)
    decoder([torch.zeros(1, 4, 40, 40), image])[0, :, 0, 0].sum().backward()
    assert image.grad[..., -1, -1].abs().sum() > 0


def test_an_encoder_that_cannot_be_dilated_is_an_error():
    with pytest.raises(ValueError, match="swin"):
        MultiTaskModel(ModelConfig(encoder=EncoderConfig(name="swin_micro", output_stride=8)), {"semseg": 5}, (64, 64))
