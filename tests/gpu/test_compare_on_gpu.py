"""Runs of a comparison side by side on a GPU: what they report, and that they wait for memory."""

import subprocess
import sys

import pytest
import torch

from fedhca2.federation.comparison_runs import plan_runs
from fedhca2.federation.memory_room import CONTEXT, read_report
from fedhca2.federation.parallel_runs import run_in_parallel
from fedhca2.federation.run_process import memory_file
from small import small

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
# Takes all but 256 MiB of the GPU, says so, and gives them back when its input ends.
HOARD = """
import sys, torch
held = torch.empty(torch.cuda.mem_get_info()[0] - (256 << 20), dtype=torch.uint8, device="cuda")
print("held", flush=True)
sys.stdin.read()
"""


class Notes:
    """Records how many ran at once and how often all only waited."""

    def __init__(self):
        self.most, self.waited = 0, 0

    def began(self, how): ...

    def ended(self, *_): ...

    def put_back(self, *_): ...

    def looked(self, running, waiting):
        self.most = max(self.most, len(running))
        self.waited += bool(waiting and not running)


class Hoarder(Notes):
    """Takes the GPU's memory when the first run has ended, and gives it back when others have waited for a while."""

    hoard = None

    def ended(self, *_):
        if self.hoard is None:
            self.hoard = subprocess.Popen([sys.executable, "-c", HOARD], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert self.hoard.stdout.readline() == b"held\n"

    def looked(self, running, waiting):
        super().looked(running, waiting)
        if self.waited == 20:
            self.hoard.stdin.close()


@pytest.fixture
def runs(tmp_path):
    known = {"encoder": {"name": "swin_micro"}}  # a run's process does not know the tests' own encoder
    return plan_runs(small(rounds=20, model=known), ["fedavg"], 2, tmp_path)


def test_runs_share_the_gpu_and_report_what_they_take(runs):
    assert run_in_parallel(runs, None, notes := Notes()) == {}
    assert notes.most > 1
    report = read_report(memory_file(runs[0]))
    assert report.reserved > 0
    assert CONTEXT / 4 < report.context < 8 * CONTEXT


def test_a_run_waits_until_somebody_else_gives_memory_back(runs):
    assert run_in_parallel(runs[:2], 1, notes := Hoarder()) == {}
    assert notes.waited >= 20
    assert notes.hoard.wait(60) == 0
