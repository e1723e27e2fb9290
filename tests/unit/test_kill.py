import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "kill_run.py"


@pytest.mark.slow
def test_runs_that_are_killed_twenty_times_end_as_if_nothing_had_happened(tmp_path):
    ended = subprocess.run(
        [sys.executable, SCRIPT, tmp_path, "0", "20"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
