from math import inf, nan

import pytest
import torch
from torch.testing import assert_close

from fedhca2 import losses
from fedhca2.tasks import TASKS, LabelSpace
from fedhca2.tasks.built_in import BUILT_IN

SPACE = LabelSpace(classes=5)


def example(task, rng, batch=5):
    """Random output and a label; a map has six rows, a vector is one of five."""
    size = (6, 7) if task.output == "map" else ()
    output = torch.randn(batch, task.channels_for(SPACE), *size, generator=rng)
    shape = (batch, task.label_channels_for(SPACE), *size)
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


@pytest.fixture(params=BUILT_IN, ids=lambda task: task.name)
def task(request):
    return request.param


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
