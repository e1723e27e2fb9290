"""The example for newcomers runs."""

from pathlib import Path

import pytest

from warm import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"

FEW = [
    "rounds=1",
    "training.batch_size=2",
    "data.outdoor.train=12",
    "data.indoor.train=6",
    "data.outdoor.val=2",
    "data.indoor.val=2",
]


@pytest.mark.slow
def test_the_script_says_what_each_client_gained(tmp_path):
    assert "outdoor-semseg" in output_of(EXAMPLES / "quickstart.py", *FEW, cwd=tmp_path)
    assert list(tmp_path.glob("runs/demo-*/report.html"))
