"""Images of any size are prepared and scored on a GPU as on the CPU."""

import pytest
import torch
from torch.testing import assert_close

from fedhca2.data.batches import Batches, DeviceFeed
from fedhca2.tasks import TASKS, LabelSpace

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
GPU = torch.device("cuda", 0)
SIZES = [(75, 100), (40, 20), (32, 32), (5, 64)]
TASK_CHANNELS = {"semseg": 1, "normals": 3, "depth": 1}


class Photographs:
    """Noise in images of several sizes."""

    size, labels = (32, 32), {task: LabelSpace(classes=3) for task in TASK_CHANNELS}

    def load(self, index, tasks):
        dice = torch.Generator().manual_seed(index)
        image = torch.randint(255, (3, *SIZES[index]), generator=dice).byte()
        return {"image": image} | {task: torch.ones(TASK_CHANNELS[task], *SIZES[index]) for task in tasks}


@pytest.mark.parametrize("compile", [False, True])
def test_a_gpu_prepares_and_compares_the_same(compile):
    batches = Batches(Photographs(), range(4), list(TASK_CHANNELS), batch_size=2, resize="fit")
    pairs = zip(batches.evaluation(), batches.evaluation(DeviceFeed(GPU, compile=compile)), strict=True)
    for expected, found in pairs:
        assert_close(found.image.cpu(), expected.image, rtol=1e-5, atol=1e-5)
        for task, channels in TASK_CHANNELS.items():
            raw = torch.randn(2, channels, 32, 32, generator=torch.Generator().manual_seed(0))
            prediction = TASKS[task].predict(raw)
            on_cpu, on_gpu = expected.pairs(TASKS[task], prediction), found.pairs(TASKS[task], prediction.to(GPU))
            for (one, label), (other, same) in zip(on_cpu, on_gpu, strict=True):
                assert_close(other.cpu(), one, rtol=1e-5, atol=1e-5)
                assert_close(same.cpu(), label)
