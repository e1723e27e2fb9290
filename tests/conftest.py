import os

import pytest
import torch
from hypothesis import settings

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"  # kernels for a GPU run on a CPU, slowly; set before they are imported
settings.load_profile("ci")  # the same examples each time; --hypothesis-profile=default draws new ones
torch.set_num_threads(1)  # two workers run the tests, on two cores


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
