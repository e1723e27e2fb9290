"""The federation as processes on loopback, with TLS and authenticated sites; things that go wrong included."""

import json
import subprocess

import pytest
import torch
from deployment import Deployment, impatience, wait_for
from federations import in_memory, small_experiment
from safetensors.torch import load_file

from fedhca2.federation.flower.keys import make_keys, make_site_keys
from fedhca2.federation.flower.processes import free_port, start, stop

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def experiment():
    return small_experiment(rounds=3, clients=CLIENTS)


CLIENTS = [
    {"data": "outdoor", "split": ["semseg", "normals"]},
    {"name": "home", "data": "indoor", "tasks": ["depth", "normals"], "epochs": 20},  # long enough to be killed in
]


@pytest.fixture(scope="module")
def expected(experiment):
    return in_memory(experiment)


@pytest.fixture(scope="module")
def deployment(experiment, tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment")
    with impatience(folder / "impatience"), Deployment(folder, experiment) as found:
        for name in found.files:
            found.start_site(name)
        yield found


def models_at_sites(deployment, out):
    run = json.loads((out / "flower.json").read_text())["run"]
    state = deployment.folder / "sites" / "state" / f"small-{run}"
    return {name: load_file(state / name / "model.safetensors") for name in deployment.files}


def assert_equal_models(ours, theirs):
    for client, tensors in theirs.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, ours[client][name]), (client, name)


def finished(deployment, process, out):
    code = process.wait(240)
    assert code == 0, deployment.log("serve")
    return json.loads((out / "result.json").read_text())["clients"]


def rounds_saved(out):
    return len(list((out / "checkpoints").glob("round-*"))) if (out / "checkpoints").exists() else 0


def test_a_server_that_is_killed_resumes_to_the_same_models(deployment, expected, tmp_path):
    models, scores = expected
    out = tmp_path / "run"
    deployment.serve(deployment.config, out)
    wait_for(lambda: rounds_saved(out) >= 1)
    deployment.kill("serve")
    assert not (out / "result.json").exists()
    process = deployment.serve(out, out)
    assert finished(deployment, process, out) == scores
    assert_equal_models(models_at_sites(deployment, out), models)


def supernode(deployment, folder, *options):
    """What a SuperNode with these options has to say until it gives up."""
    log = folder / "supernode.log"
    command = ["flower-supernode", "--superlink", deployment.public, "--isolation", "process"]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "1", *options]
    process = start(command, folder / "home", log)
    try:
        assert process.wait(60) != 0
    except subprocess.TimeoutExpired:
        pytest.fail(f"a SuperNode should have been refused, found it running: {log.read_text()}")
    finally:
        stop([process])
    assert "SuperNode ID" not in log.read_text()
    return log.read_text()


def test_an_unregistered_key_is_refused(deployment, tmp_path):
    make_site_keys(tmp_path / "stranger", (deployment.keys / "ca.crt").read_bytes())
    keys = ["--root-certificates", str(deployment.keys / "ca.crt")]
    keys += ["--auth-supernode-private-key", str(tmp_path / "stranger" / "node.key")]
    assert "SuperNode" in supernode(deployment, tmp_path, *keys)


def test_a_wrong_authority_is_refused(deployment, tmp_path):
    make_keys(tmp_path / "other", [])
    key = deployment.keys / "sites" / "home" / "node.key"
    keys = ["--root-certificates", str(tmp_path / "other" / "ca.crt"), "--auth-supernode-private-key", str(key)]
    assert "CERTIFICATE_VERIFY_FAILED" in supernode(deployment, tmp_path, *keys)


def test_plain_text_is_refused(deployment, tmp_path):
    supernode(deployment, tmp_path, "--insecure")


def test_sites_that_die_in_a_round_and_come_back_end_with_the_same_models(deployment, expected, tmp_path):
    models, scores = expected
    out = tmp_path / "run"
    before = deployment.log("home").count("round 2 of small")
    process = deployment.serve(deployment.config, out, "--spool")
    wait_for(lambda: deployment.log("home").count("round 2 of small") > before)
    deployment.kill("home")
    deployment.processes["outdoor-normals"].terminate()
    deployment.processes["outdoor-normals"].wait(30)
    deployment.start_stock_site("outdoor-normals")
    deployment.start_site("home")
    assert finished(deployment, process, out) == scores
    assert_equal_models(models_at_sites(deployment, out), models)
