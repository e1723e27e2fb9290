import pytest
import torch

torch.set_num_threads(1)  # two workers run the tests, on two cores


@pytest.fixture
def rng() -> torch.Generator:
    return torch.Generator().manual_seed(0)
