"""The example for newcomers runs."""

from pathlib import Path

import pytest

from small import BRIEF
from warm import output_of

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.slow
def test_the_script_says_what_each_client_gained(tmp_path):
    assert "outdoor-semseg" in output_of(EXAMPLES / "quickstart.py", *BRIEF, cwd=tmp_path)
    assert list(tmp_path.glob("runs/demo-*/report.html"))
