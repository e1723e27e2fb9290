from pathlib import Path

import pytest

from warm import output_of

SCRIPTS = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("command", [("kill_run.py", "0", "20"), ("kill_at_every_step.py", "4")])
def test_runs_that_are_killed_end_as_if_nothing_had_happened(tmp_path, command):
    script, *options = command
    assert "equal to the straight run" in output_of(SCRIPTS / script, tmp_path, *options)
