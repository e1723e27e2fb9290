"""The noise of an update is the same on every device."""

import pytest
import torch

from fedhca2.clients.privacy import Privacy, privatise
from fedhca2.params import Slot

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
ENCODER = Slot("encoder")


def test_an_update_on_a_gpu_is_sent_as_one_in_memory():
    update = torch.randn(100_000, generator=torch.Generator().manual_seed(0))
    sent = [
        privatise({ENCODER: update.to(device)}, Privacy(clip=1.0, noise=0.1), bytes(32), round=0)[ENCODER]
        for device in ("cpu", "cuda")
    ]
    assert sent[1].is_cuda
    assert torch.equal(sent[0], sent[1].cpu())
