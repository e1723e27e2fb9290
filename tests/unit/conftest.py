from contextlib import nullcontext
from functools import cache

import pytest
import yaml


@pytest.fixture(scope="session")
def once(tmp_path_factory):
    """Run an experiment to its end, or until it crashes after a round, once for all tests; return its folder."""
    from fedhca2.experiment import Experiment
    from small_run import CrashError, Silent, crash, run_small

    @cache
    def run(text, crashes_at):
        folder, experiment = tmp_path_factory.mktemp("once") / "run", Experiment.parse(yaml.safe_load(text))
        with nullcontext() if crashes_at is None else pytest.raises(CrashError):
            run_small(experiment, folder, Silent(crashes_at, crash))
        return folder

    return lambda experiment, crashes_at=None: run(experiment.to_yaml(), crashes_at)
