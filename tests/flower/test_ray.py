"""Flower's Ray simulation, if Ray is installed (extra `flower-ray`)."""

import sys

import pytest
from federations import in_memory, small_experiment

from fedhca2.errors import UserError
from fedhca2.federation.flower.local import run_ray
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.run_folder.records import Watcher

TO_INSTALL = "pip install 'fedhca2[flower-ray]'"


@pytest.mark.slow
def test_the_simulation_has_the_scores_of_one_process(tmp_path):
    pytest.importorskip("ray", reason=f"Ray is not installed: {TO_INSTALL}")
    experiment = small_experiment(model={"encoder": {"name": "swin_micro"}})  # Ray's workers know no other
    result = run_ray(experiment, tmp_path / "run", Watcher(), NetworkSettings(deadline=100))
    assert result.clients == in_memory(experiment)[1]


def test_without_ray_the_engine_says_what_to_install(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UserError) as raised:
        run_ray(small_experiment(), tmp_path / "run", Watcher(), NetworkSettings())
    assert TO_INSTALL in str(raised.value)
