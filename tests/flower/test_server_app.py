"""The ServerApp that `flwr run` starts, with the run config of the app's bundle."""

import json
import tomllib
from importlib import import_module

import pytest
from federations import flower_federation, in_memory, small_experiment
from flwr.app import Context, RecordDict

from fedhca2.federation.flower.deploy.superlink import write_app

pytestmark = pytest.mark.slow


def test_flower_s_server_app_has_the_scores_of_one_process(tmp_path):
    experiment = small_experiment(rounds=1)
    (tmp_path / "small.yaml").write_text(experiment.to_yaml())
    write_app(tmp_path / "app")
    bundle = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())
    places = {"experiment": str(tmp_path / "small.yaml"), "out": str(tmp_path / "run")}
    config = bundle["tool"]["flwr"]["app"]["config"] | places
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    module, _, name = bundle["tool"]["flwr"]["app"]["components"]["serverapp"].partition(":")
    getattr(import_module(module), name)(grid, Context(1, 0, {}, RecordDict(), config))
    assert json.loads((tmp_path / "run" / "result.json").read_text())["clients"] == in_memory(experiment)[1]
