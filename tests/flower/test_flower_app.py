"""examples/flower_app: an app as a Flower user writes it, as Flower's hub takes it, with the numbers of the server."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from flwr.app import Context, RecordDict
from own_app import Alone, StrategyGrid
from torch.testing import assert_close

from fedhca2.clients import load_state
from fedhca2.federation.flower.internals import build_fab_from_disk
from fedhca2.methods import METHODS

APP = Path(__file__).parents[2] / "examples" / "flower_app"
ROUNDS = 3


@pytest.fixture
def modules(monkeypatch):
    monkeypatch.syspath_prepend(APP)
    from flower_app import client_app, server_app, task

    return client_app, server_app, task


def parts(client, tasks):
    names = {f"{part}.{task}": f"{part}s.{task}" for task in tasks[client] for part in ("decoder", "head")}
    return {"encoder": "backbone", **names}


@pytest.mark.slow
def test_the_app_has_the_numbers_of_the_server(modules, tmp_path, capsys):
    client_app, server_app, task = modules
    config = {"state": str(tmp_path), "method": "fedhca2", "num-rounds": ROUNDS}

    def node(number):
        context = Context(0, number, {"partition-id": number}, RecordDict(), config)
        return lambda message, _: client_app.app(message, context)

    grid = StrategyGrid({name: node(number) for number, name in enumerate(task.CLIENTS)})
    server_app.main(grid, SimpleNamespace(run_config=config))
    models = {name: task.Model(tasks) for name, tasks in task.CLIENTS.items()}
    data = {name: task.load_data(name) for name in models}

    def train(model, name, round):
        task.train(model, data[name], lambda: 0.0)

    expected = Alone(models, lambda name: parts(name, task.CLIENTS), train, METHODS["fedhca2"].over(ROUNDS)).run(ROUNDS)
    for name, model in expected.models.items():
        (file,) = tmp_path.glob(f"*/{name}/state.safetensors")
        found = {key: row for key, row in load_state(file).tensors.items() if key.startswith("model/")}
        assert_close(found, {f"model/{key}": row for key, row in model.state_dict().items()}, rtol=1e-4, atol=1e-6)
    assert len(capsys.readouterr().out.splitlines()) == sum(map(len, task.CLIENTS.values()))


def test_the_hub_and_flower_take_the_app():
    assert {"README.md", "LICENSE", "pyproject.toml"} <= {path.name for path in APP.iterdir()}
    assert len(build_fab_from_disk(APP)) < 1_000_000


def test_the_app_accepts_the_versions_of_flower_that_we_do():
    root = tomllib.loads((APP.parents[1] / "pyproject.toml").read_text("utf-8"))["project"]
    ours = root["optional-dependencies"]["flower-ray"][0]
    assert ours in tomllib.loads((APP / "pyproject.toml").read_text("utf-8"))["project"]["dependencies"]
