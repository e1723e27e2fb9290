"""Whole runs: what a user gets from `fedhca2 run`."""

import json
import subprocess
import sys

import pytest
import yaml
from safetensors.torch import load_file
from typer.testing import CliRunner

from fedhca2.cli import app
from small import SMALL

pytestmark = pytest.mark.slow


def invoke(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "baseline": True}))
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """A run of FedHCA² with its Local baseline."""
    out = tmp_path_factory.mktemp("run") / "out"
    done = invoke("run", config, "--out", out)
    assert done.exit_code == 0, done.output
    return out, done.output


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_the_table_has_a_row_for_each_client_and_task(finished):
    words = ("outdoor-semseg", "outdoor-normals", "home", "mIoU", "mErr", "RMSE", "local", "fedhca2", "gain", "Δm")
    assert [word for word in words if word not in finished[1]] == []


def test_the_table_prints_the_numbers_of_the_result(finished):
    assert f"{result(finished[0])['clients']['outdoor-normals']['normals']['mean_error']:.1f}°" in finished[1]


def test_the_baseline_is_a_run_of_local(finished):
    baseline = result(finished[0] / "baseline")
    assert (baseline["method"], baseline["clients"]) == ("local", result(finished[0])["baseline"])


def test_local_sends_nothing_but_losses_and_scores(finished):
    up = [e["bytes_up"] for e in events(finished[0] / "baseline") if e["event"] == "client"]
    assert max(up) < 100


def events(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_bytes_add_up(finished):
    found = [event for event in events(finished[0]) if event["event"] == "client"]
    total = {"up": sum(e["bytes_up"] for e in found), "down": sum(e["bytes_down"] for e in found)}
    assert total == result(finished[0])["bytes"]


def test_models_can_be_read_without_this_package(finished):
    tensors = load_file(finished[0] / "models" / "home.safetensors")
    assert {name.split(".")[0] for name in tensors} == {"encoder", "decoders", "heads"}


def test_the_written_config_gives_the_same_run(finished, tmp_path):
    invoke("run", finished[0] / "config.yaml", "--out", tmp_path / "again", "--set", "baseline=false")
    assert result(tmp_path / "again")["clients"] == result(finished[0])["clients"]


@pytest.mark.parametrize("change", ["seed=1", "rounds=3", "data.outdoor.seed=4", "training.batch_size=3"])
def test_a_run_with_other_settings_is_no_baseline(config, finished, tmp_path, change):
    done = invoke("run", config, "--out", tmp_path / "x", "--set", change, "--baseline", finished[0])
    assert (done.exit_code, "got different" in done.output, (tmp_path / "x").exists()) == (2, True, False)


def test_a_run_in_which_every_client_diverged_says_so(config, tmp_path):
    fast = ["training.learning_rate=1.0e+20", "training.schedule.warmup_from=1.0e+20", "baseline=false", "rounds=1"]
    done = invoke("run", config, "--out", tmp_path / "run", *(word for rate in fast for word in ("--set", rate)))
    assert done.exit_code == 3
    assert "all clients failed in the last round" in done.stderr


FIRST_BATCH = """
import os, sys
from fedhca2.cli import app
from fedhca2.reports.console import ConsoleWatcher
ConsoleWatcher.batch = lambda *_: (print(*sys.modules, flush=True), os._exit(0))
others = [f"clients.{i}.model={{encoder: {{name: test_{kind}}}}}" for i, kind in enumerate(["resnet", "convnext"])]
app(["run", "demo", "--set", "rounds=1", "--set", others[0], "--set", others[1], "--out", sys.argv[1]])
"""
SLOW_TO_IMPORT = {
    *("scipy.linalg", "scipy.optimize", "scipy.stats", "numba", "cv2"),
    *("plotly", "pandas", "sklearn", "skimage", "matplotlib", "flwr", "ray", "grpc", "onnx", "dp_accounting"),
    *("tensorboard", "wandb", "fedhca2.reports.page.write", "fedhca2.reports.figures.transfer"),
}


def test_the_first_batch_waits_for_no_import_that_it_does_without(tmp_path):
    ended = subprocess.run(
        [sys.executable, "-c", FIRST_BATCH, tmp_path / "run"], capture_output=True, text=True, check=True
    )
    imported = set(ended.stdout.split())
    assert "timm" in imported
    assert imported & SLOW_TO_IMPORT == set()
