"""`fedhca2 run --dry-run` and `sweep`."""

import json
import re

import pytest
import yaml

from command import as_json, printed, refused
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import plan_sweep
from small_run import SETTINGS

CLIENTS = [
    {"name": "shop", "data": "outdoor", "tasks": ["sal"]},
    {"name": "home", "data": "indoor", "tasks": ["depth"]},
]
TEXT = {**SETTINGS, "clients": CLIENTS, "method": "fedhca2", "rounds": 2, "evaluate_every": 0}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump(TEXT))
    return path


@pytest.fixture(scope="module")
def swept(config, tmp_path_factory):
    """A sweep over two values, with the Local run that serves both."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    return out, as_json("sweep", config, "--over", "method.c=0.2,0.5", "--out", out)


@pytest.mark.slow
def test_a_forecast_has_the_bytes_of_the_run(config, swept):
    lines = (swept[0] / "method.c-0.5" / "seed-0" / "metrics.jsonl").read_text().splitlines()
    events = [event for event in map(json.loads, lines) if event["event"] == "client" and event["round"] == 1]
    expected = {event["client"]: (event["bytes_up"], event["bytes_down"]) for event in events}
    output = as_json("run", config, "--dry-run")["clients"]
    assert {client["client"]: (client["bytes_up"], client["bytes_down"]) for client in output} == expected


def test_a_forecast_knows_the_memory_of_steps_with_random_draws_and_leaves_nothing(config, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    plan, text = as_json("run", config, "--dry-run"), printed("run", config, "--dry-run")
    assert plan["config"]["model"]["encoder"]["drop_path"] > 0
    assert plan["memory"]["steps"] > 0
    assert text.startswith("name: small\n")
    assert "Dry run" in text
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("mistake", "prefix"),
    [
        (("--set", "model.encoder.name=nothing"), "model"),
        (("--baseline", "nowhere"), "--baseline nowhere"),
        (("--out", "{folder}"), "{folder}"),
        (("--out", "{folder}/file"), "{folder}/file"),
        (("--track", "tensorboard={folder}/file"), "--track tensorboard={folder}/file"),
        (("--set", "secure_aggregation={}", "--set", "method=fedavg"), "secure_aggregation"),
        (("--set", "devices=[cuda:9]"), "devices"),
    ],
)
@pytest.mark.parametrize("how", [(), ("--dry-run",)])
def test_a_mistake_is_the_same_line_in_a_run_and_in_its_forecast(config, tmp_path, how, mistake, prefix):
    (tmp_path / "file").write_text("full")
    words = [word.replace("{folder}", str(tmp_path)) for word in mistake]
    out = () if "--out" in words else ("--out", tmp_path / "out")
    line = refused("run", config, *how, *out, *words)
    assert line.startswith(f"error: {prefix.replace('{folder}', str(tmp_path))}")
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_sweep_has_a_row_for_each_value_a_figure_that_names_the_setting_and_origins(swept):
    out, output = swept
    assert {row["method"] for row in output["table"]} == {"local", "fedhca2, c=0.2", "fedhca2, c=0.5"}
    assert {"table.md", "sweep.svg", "report.html"} <= {path.name for path in out.iterdir()}
    assert output["failed"] == {}
    result = json.loads((out / "local" / "seed-0" / "result.json").read_text())
    assert set(result["origin"]) == {"command", "started", "git"}
    assert "Δm % ↑ over method.c: 0.2: " in (out / "sweep.svg").read_text("utf-8")


def test_values_that_change_local_have_their_own(config, tmp_path):
    settings = [f"training.learning_rate={rate}" for rate in (0.1, 0.2)]
    planned = plan_sweep({setting: Experiment.load(str(config), [setting]) for setting in settings}, 2, tmp_path)
    assert len({run.folder for run in planned}) == 8


@pytest.mark.slow
def test_a_sweep_over_two_settings_has_a_row_for_each_combination(config, tmp_path):
    swept = ("--over", "method.c=0.2,0.5", "--over", "training.learning_rate=0.001,0.002")
    output = as_json("sweep", config, *swept, "--set", "rounds=1", "--out", tmp_path / "out")["table"]
    combinations = {f"fedhca2, c={c}, learning_rate={rate}" for c in (0.2, 0.5) for rate in (0.001, 0.002)}
    assert {row["method"] for row in output if not row["method"].startswith("local")} == combinations
    assert len({row["method"] for row in output}) == len(combinations) + 2  # a Local for each learning rate
    assert not (tmp_path / "out" / "sweep.svg").exists()


@pytest.mark.slow
def test_a_sweep_over_copies_has_a_curve_for_each_method(config, tmp_path):
    swept = ("--over", "copies=1,2", "--methods", "local,fedavg", "--seeds", 2, "--set", "rounds=1")
    output = as_json("sweep", config, *swept, "--set", "data.indoor.train=4", "--out", tmp_path / "out")
    rows = {row["method"]: row["mean"] for row in output["table"] if row["metric"] == "Δm"}
    methods = ("fedhca2", "local", "fedavg")
    assert set(rows) == {f"{method}, {count} of each" for method in methods for count in (1, 2)}
    drawing = (tmp_path / "out" / "sweep.svg").read_text("utf-8")
    means = {method: "; ".join(f"{n}: {rows[f'{method}, {n} of each']:.4g}" for n in (1, 2)) for method in methods}
    assert f"over copies: {' | '.join(f'{method}: {values}' for method, values in means.items())}" in drawing
    assert drawing.count("<circle") == len(methods) * 2 * 2  # a point for each seed


@pytest.mark.slow
def test_methods_without_the_swept_setting_are_lines_in_a_figure_of_any_score(config, tmp_path):
    words = ("--over", "method.c=0.2,0.5", "--methods", "fedavg,local", "--metric", "indoor:depth", "--set", "rounds=1")
    table = as_json("sweep", config, *words, "--out", tmp_path / "out")["table"]
    rows = {row["method"]: row["mean"] for row in table if row["task"] == "depth"}
    assert set(rows) == {"local", "fedavg", "fedhca2, c=0.2", "fedhca2, c=0.5"}
    drawing = (tmp_path / "out" / "sweep.svg").read_text("utf-8")
    assert f"| fedavg: 0.2: {rows['fedavg']:.4g}; 0.5: {rows['fedavg']:.4g} | local" in drawing
    assert drawing.count('<g stroke-dasharray="6 4">') == 4  # two lines, each also in the key
    assert "indoor, single-task: depth RMSE ↓ over method.c" in drawing
    ticks = re.findall(r'text-anchor="end"[^>]*>([^<]*)<', drawing)
    assert len(set(ticks)) == len(ticks)


@pytest.mark.parametrize(
    ("over", "line"),
    [
        ("method.c", "expected KEY=V1,V2,…"),
        ("method.c=0.2", "expected KEY=V1,V2,…"),
        ("=1,2", "expected KEY=V1,V2,…"),
        ("method.c=0.2,[", "the values are not valid YAML"),
        ("method.c=0.2,0.2", "expected different values"),
        ("method.c=0.2,5", "encoder.c: expected less than 1, got 5"),
        ("method.d=1,2", "unknown setting 'd'"),
        ("rouds=1,2", "rouds: unknown key"),
        ("seed=0,1", "another setting than 'seed': --seeds"),
        ("name=a,b", "another setting than 'name'"),
        ("devices=[cpu],[cuda:9]", "another setting than 'devices'"),
        ("clients.0.name=a,b", "expected the clients and tasks of clients.0.name=a"),
        ("clients.0.tasks=[sal],[semseg]", "expected the clients and tasks of clients.0.tasks="),
        ("rounds=yes,no", "rounds: expected a number, got True"),
        ("method.c=0.2,0.5 --methods fedagv", "method: expected a method, got 'fedagv'. Did you mean 'fedavg'?"),
        ("method.c=0.2,0.5 --metric semseg", "expected one of: outdoor, single-task: sal; indoor, single-task: "),
        ("method.c=0.2,0.5 --metric outdoor:depth", "--metric outdoor:depth: expected one of: "),
        ("method.c=0.2,0.5 --over method.c=0.6,0.7", "all values of method.c"),
    ],
)
def test_a_wrong_sweep_is_one_line_before_anything_runs(config, tmp_path, over, line):
    assert line in refused("sweep", config, "--over", *over.split(" "), "--out", tmp_path / "out")
    assert not (tmp_path / "out").exists()
