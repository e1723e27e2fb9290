from math import inf, nan

import pytest
import torch
from torch.testing import assert_close

from fedhca2 import losses
from fedhca2.painting import DARK_GREY, voc_palette
from fedhca2.tasks import TASKS, LabelSpace
from fedhca2.tasks.built_in import BUILT_IN

SPACE = LabelSpace(classes=5)


@pytest.fixture(params=BUILT_IN, ids=lambda task: task.name)
def task(request):
    return request.param


@pytest.fixture(params=[task for task in BUILT_IN if task.output == "map"], ids=lambda task: task.name)
def map_task(request):
    return request.param


def size_of(task):
    return (6, 7) if task.output == "map" else ()


def output_of(task):
    return torch.randn(3, task.channels_for(SPACE), *size_of(task), generator=torch.Generator().manual_seed(0))


def test_prediction_has_the_shape_of_a_label_and_is_painted_in_bytes(task):
    prediction = task.predict(output_of(task))
    assert prediction.shape == (3, task.label_channels_for(SPACE), *size_of(task))
    image = task.paint(prediction[0], SPACE)
    assert (image.dtype, image.shape[0], image.ndim) == (torch.uint8, 3, 3)
    assert (task.output == "vector") == (image.shape[1:] != (6, 7))


def test_metrics_take_a_prediction_as_its_own_label(task):
    prediction = task.predict(output_of(task))
    label = prediction.round() if task.name in ("sal", "edge", "multilabel") else prediction
    for name, make in task.metrics.items():
        metric = make(SPACE)
        metric.update(prediction, label)
        assert (next(iter(metric.compute())), metric.name) == (name, name)


def test_a_task_is_judged_by_its_own_metric_unless_another_is_chosen():
    actual = TASKS.metrics(["semseg", "sal"], {"semseg": SPACE, "sal": SPACE}, {"sal": "miou"})
    assert {task: metric.name for task, metric in actual.items()} == {"semseg": "miou", "sal": "miou"}
    assert TASKS.metrics(["sal"], {"sal": SPACE}, {})["sal"].name == "max_f"


def test_ignored_pixels_and_padding_stay_ignored_and_are_painted_grey(map_task):
    channels = map_task.label_channels_for(SPACE)
    label = torch.full((2, channels, 6, 7), 255.0)
    assert_close(map_task.ignored(map_task.flipped(map_task.rescaled(label, 1.7))), label, rtol=0, atol=0)
    assert (map_task.paint(label[0], SPACE) == DARK_GREY).all()
    assert (map_task.ignored(torch.full((channels, 6, 7), float(map_task.fill))) == 255).all()


def test_label_hooks_treat_a_batch_as_its_samples(map_task):
    def changed(label):
        return map_task.ignored(map_task.flipped(map_task.rescaled(label, 2.0)))

    generator = torch.Generator().manual_seed(1)
    batch = torch.randint(0, 3, (4, map_task.label_channels_for(SPACE), 2, 2), generator=generator).float()
    assert_close(changed(batch), torch.stack([changed(one) for one in batch]))


def test_a_map_of_parts_without_any_part_is_ignored():
    label = torch.zeros(2, 1, 2, 2, dtype=torch.uint8)
    label[1, 0, 0, 0] = 3
    assert TASKS["human_parts"].ignored(label).flatten().tolist() == [255] * 4 + [3, 0, 0, 0]


def test_far_is_lighter_than_near_and_the_last_voc_class_has_its_colour():
    near, far = (TASKS["depth"].paint(torch.full((1, 1, 1), metres), SPACE).float().mean() for metres in (1.0, 9.0))
    assert (far > near, voc_palette()[20].tolist()) == (True, [0, 64, 128])


def example(task, rng, batch=5):
    """Random output and a label; a map has six rows, a vector is one of five."""
    output = torch.randn(batch, task.channels_for(SPACE), *size_of(task), generator=rng)
    shape = (batch, task.label_channels_for(SPACE), *size_of(task))
    if task.label_channels == 3 or task.name in ("depth", "regression"):
        label = torch.rand(shape, generator=rng) + 0.1
    else:
        label = torch.randint(0, 2, shape, generator=rng).float()
    return output, label


def parts(task):
    """Where the first of a batch's answers are, and the others: rows of maps, or some of the vectors."""
    if task.output == "map":
        return (..., slice(3), slice(None)), (..., slice(3, None), slice(None))
    return slice(3), slice(3, None)


def unknown(task):
    return 255 if task.output == "map" else torch.nan


@pytest.mark.parametrize("scale", [1, 0])
def test_ignored_pixels_change_neither_the_loss_nor_its_gradient(task, rng, scale):
    output, label = example(task, rng)
    first, others = parts(task)
    output[others] *= scale
    label[others] = unknown(task)
    output.requires_grad_()
    loss = task.loss(output, label)
    assert_close(loss, task.loss(output[first], label[first]))
    loss.backward()
    assert (bool(output.grad.isfinite().all()), bool(output.grad[others].any())) == (True, False)
    assert task.loss(output, torch.full_like(label, unknown(task))) == 0


def test_autocast_does_not_change_the_loss_which_is_float32(task, rng):
    output, label = example(task, rng)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss, low = task.loss(output, label), task.loss(output.bfloat16(), label)
    assert_close(loss, task.loss(output, label), rtol=0, atol=0)
    assert low.dtype == torch.float32


@pytest.mark.parametrize("name", ["semseg", "human_parts", "sal", "edge"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_integer_labels_give_the_same_loss(name, dtype, rng):
    task = TASKS[name]
    output, label = example(task, rng)
    label[..., 0] = 255
    assert_close(task.loss(output, label.to(dtype)), task.loss(output, label), rtol=0, atol=0)


def test_loss_is_one_graph_without_a_wait_for_the_device(task, rng):
    assert torch._dynamo.explain(task.loss)(*example(task, rng)).graph_break_count == 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_loss_and_gradient_never_wait_for_the_gpu(task, rng):
    output, label = (tensor.cuda() for tensor in example(task, rng))
    output.requires_grad_()
    torch.cuda.set_sync_debug_mode("error")
    try:
        task.loss(output, task.ignored(task.flipped(label))).backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_an_infinite_label_makes_the_loss_infinite_and_a_missing_one_does_not_count():
    output = torch.zeros(2, 1)
    assert losses.smooth_l1(output, torch.tensor([[inf], [nan]])) == inf
    assert losses.smooth_l1(output, torch.tensor([[1.0], [nan]])) == 0.5
