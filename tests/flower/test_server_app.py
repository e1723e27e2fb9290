"""Flower's own ways to start a run: `flwr run`, whose app names our ServerApp, and its Ray simulation."""

import json
import sys
import tomllib
from importlib import import_module

import pytest
from federations import Federation, in_memory, small_experiment
from flwr.app import Context, RecordDict

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.superlink import write_app
from fedhca2.federation.flower.local import run_ray
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.run_folder.records import Watcher

TO_INSTALL = "pip install 'fedhca2[flower-ray]'"


@pytest.mark.slow
def test_flower_s_server_app_has_the_scores_of_one_process(tmp_path):
    experiment = small_experiment(rounds=1)
    (tmp_path / "small.yaml").write_text(experiment.to_yaml())
    write_app(tmp_path / "app")
    bundle = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    config = bundle["config"] | {"experiment": str(tmp_path / "small.yaml"), "out": str(tmp_path / "run")}
    module, _, name = bundle["components"]["serverapp"].partition(":")
    getattr(import_module(module), name)(Federation(experiment, tmp_path).grid, Context(1, 0, {}, RecordDict(), config))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["clients"] == in_memory(experiment)[1]


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
