"""Runs of a comparison side by side on a GPU."""

import pytest
import torch

from fedhca2.federation.comparison_runs import plan_runs
from fedhca2.federation.parallel_runs import ParallelWatcher, run_in_parallel
from small import small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


class Notes(ParallelWatcher):
    """Records how many ran at once."""

    most = 0

    def polled(self, running, waiting):
        self.most = max(self.most, len(running))


@pytest.mark.parametrize("mps", [False, True])
def test_runs_share_the_gpu(tmp_path, mps):
    known = {"encoder": {"name": "swin_micro"}}  # a run's process does not know the tests' own encoder
    runs = plan_runs(small(rounds=20, model=known), ["fedavg"], 2, tmp_path)
    assert run_in_parallel(runs, 2, notes := Notes(), mps=mps) == {}
    assert notes.most == 2
