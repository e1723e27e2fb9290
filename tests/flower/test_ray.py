"""Flower's Ray simulation, where Ray is installed (extra `flower-ray`)."""

import pytest
from federations import in_memory, small_experiment

from fedhca2.federation.flower.ray import run_ray
from fedhca2.federation.flower.server_app import LogWatcher
from fedhca2.federation.flower.terms import Terms

pytestmark = pytest.mark.slow


def test_the_simulation_has_the_scores_of_one_process(tmp_path):
    pytest.importorskip("ray")
    experiment = small_experiment(rounds=2)
    result = run_ray(experiment, tmp_path / "run", LogWatcher(), Terms(deadline=100))
    assert result.clients == in_memory(experiment)[1]
