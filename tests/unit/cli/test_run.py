"""Whole runs: what a user gets from `fedhca2 run`."""

import json
import subprocess
import sys

import pytest
import yaml
from safetensors.torch import load_file

from command import invoke, printed
from small import SMALL

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    path = tmp_path_factory.mktemp("config") / "small.yaml"
    path.write_text(yaml.safe_dump({**SMALL, "baseline": True}))
    return path


@pytest.fixture(scope="module")
def finished(config, tmp_path_factory):
    """A run of FedHCA² with its Local baseline."""
    out = tmp_path_factory.mktemp("run") / "out"
    return out, printed("run", config, "--out", out)


def result(folder):
    return json.loads((folder / "result.json").read_text())


def test_the_table_has_a_row_for_each_client_and_task_with_the_numbers_of_the_result(finished):
    words = ("outdoor-semseg", "outdoor-normals", "home", "mIoU", "mErr", "RMSE", "local", "fedhca2", "gain", "Δm")
    assert [word for word in words if word not in finished[1]] == []
    assert f"{result(finished[0])['clients']['outdoor-normals']['normals']['mean_error']:.1f}°" in finished[1]


def client_events(folder):
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [event for event in events if event["event"] == "client"]


def test_the_baseline_is_a_run_of_local_which_sends_losses_and_scores_alone_and_bytes_add_up(finished):
    baseline = result(finished[0] / "baseline")
    assert (baseline["method"], baseline["clients"]) == ("local", result(finished[0])["baseline"])
    assert max(event["bytes_up"] for event in client_events(finished[0] / "baseline")) < 100
    total = {way: sum(event[f"bytes_{way}"] for event in client_events(finished[0])) for way in ("up", "down")}
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
    command = [sys.executable, "-c", FIRST_BATCH, tmp_path / "run"]
    imported = set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    assert "timm" in imported
    assert imported & SLOW_TO_IMPORT == set()
