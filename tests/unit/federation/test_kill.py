import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("kill_run.py", "0", "20"), ("kill_at_every_step.py", "4")])
def test_runs_that_are_killed_end_as_if_nothing_had_happened(tmp_path, command):
    script, *options = command
    ended = subprocess.run(
        [sys.executable, SCRIPTS / script, tmp_path, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
