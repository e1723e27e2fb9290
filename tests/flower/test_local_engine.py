"""`fedhca2 run --engine flower-local`: interrupted, resumed, killed; what it contacts and what it leaves behind."""

import json
import os
import re
import signal
from pathlib import Path

import pytest
import torch
from deployment import COMMAND, hurry, wait_for
from federations import SWIN, in_memory, small_experiment
from safetensors.torch import load_file

from fedhca2.deployment.trained import evaluate
from fedhca2.reports.pictures import sample_tiles
from fedhca2.run_folder.reader import RunFiles
from warm import Warm

pytestmark = pytest.mark.slow

SCENES = {"kind": "scenes", "size": [32, 32], "train": 2, "val": 1}
DATA = {domain: {**SCENES, "domain": domain} for domain in ("outdoor", "indoor")}
CLIENTS = [
    {"name": "road", "data": "outdoor", "tasks": ["semseg"]},
    {"name": "home", "data": "indoor", "tasks": ["depth", "normals"]},
]


class Engine:
    """Commands whose processes are all in one folder, and traced."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.contacts = folder / "contacts"

    def start(self, *command, **settings):
        with hurry(), (self.folder / "output").open("a") as output:
            environment = {**os.environ, "CONTACTS": str(self.contacts), **settings}
            return Warm([COMMAND, *command], env=environment, cwd=self.folder, stdout=output, stderr=output)

    def run(self, experiment):
        """A run's process and its folder."""
        config, out = self.folder / "small.yaml", self.folder / "run"
        config.write_text(experiment.to_yaml())
        return self.start("run", str(config), "--engine", "flower-local", "--out", str(out)), out

    @property
    def output(self):
        return (self.folder / "output").read_text()

    def processes(self):
        """The processes that it started and that are still running."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if (entry / "cwd").readlink() == self.folder:
                    found.append(entry.name)
            except OSError:
                continue
        return found


@pytest.fixture(scope="module")
def experiment():
    return small_experiment(model=SWIN, data=DATA, clients=CLIENTS, rounds=2)


@pytest.fixture(scope="module")
def interrupted(experiment, tmp_path_factory):
    """A run that was asked to stop in its first round."""
    engine = Engine(tmp_path_factory.mktemp("engine"))
    process, out = engine.run(experiment)
    metrics = out / "metrics.jsonl"
    wait_for(lambda: process.poll() is not None or (metrics.exists() and "2 clients" in engine.output))
    process.send_signal(signal.SIGINT)
    return engine, out, process.wait(240), engine.processes()


@pytest.fixture(scope="module")
def resumed(interrupted):
    """The same run, resumed, with the clock jumping by an hour in its second round."""
    engine, out, _, _ = interrupted
    ahead = engine.folder / "ahead"
    ahead.write_text("0")
    process = engine.start("resume", str(out), AHEAD=str(ahead))
    wait_for(lambda: engine.output.count("2 clients") == 2 or process.poll() is not None)
    ahead.write_text("3600")
    assert process.wait(240) == 0, engine.output
    return engine, out


@pytest.fixture(scope="module")
def in_one_process(experiment):
    """Models and scores of the same run in one process."""
    return in_memory(experiment)


def test_a_run_that_is_interrupted_stops_after_its_round(interrupted):
    engine, out, code, _ = interrupted
    assert code == 128 + signal.SIGINT, engine.output
    assert [path.name for path in (out / "checkpoints").iterdir()] == ["round-000001"]


def test_no_process_is_left_behind_by_an_interrupt(interrupted):
    assert interrupted[-1] == []


def test_a_resumed_run_has_the_scores_of_one_process(resumed, in_one_process):
    _, out = resumed
    assert json.loads((out / "result.json").read_text())["clients"] == in_one_process[1]


def test_a_resumed_run_has_the_models_of_one_process(resumed, in_one_process):
    _, out = resumed
    for client, tensors in in_one_process[0].items():
        found = load_file(out / "models" / f"{client}.safetensors")
        assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items()), client


def test_a_finished_run_can_be_evaluated_again(resumed):
    _, out = resumed
    found = evaluate(out, lambda name: None)
    assert found.clients == json.loads((out / "result.json").read_text())["clients"]


def test_a_finished_run_has_pictures_of_every_client(resumed):
    _, out = resumed
    assert {client: list(sample_tiles(RunFiles(out), client, 0)) for client in RunFiles(out).tasks} == {
        "road": ["semseg"],
        "home": ["depth", "normals"],
    }


def test_a_run_says_that_it_goes_on_when_the_clock_jumps(resumed):
    assert "the SuperLink has ended this Flower run; continuing in a new run" in resumed[0].output


def test_nothing_but_loopback_is_contacted(resumed):
    engine, _ = resumed
    assert set(engine.contacts.read_text().split()) <= {"127.0.0.1", "localhost", "::1"}


def test_no_process_is_left_behind_when_the_run_is_killed(tmp_path):
    engine = Engine(tmp_path)
    process, _ = engine.run(small_experiment(model=SWIN, data={"indoor": DATA["indoor"]}, clients=CLIENTS[1:]))
    wait_for(lambda: len(engine.processes()) >= 5)  # itself, the SuperLink, the proxy, the site, its SuperNode
    process.kill()
    process.wait()
    wait_for(lambda: engine.processes() == [], 30)


def test_a_site_that_is_killed_is_started_again_and_the_run_completes(tmp_path, experiment, in_one_process):
    engine = Engine(tmp_path)
    process, out = engine.run(experiment)
    log = tmp_path / "run.sites" / "home.log"
    pid = wait_for(lambda: log.exists() and re.search(r"process (\d+) ", log.read_text()))
    wait_for(lambda: "2 clients" in engine.output)
    os.kill(int(pid[1]), signal.SIGKILL)
    assert process.wait(240) == 0, engine.output
    assert "site home has ended with code -9 and is started again" in engine.output
    assert json.loads((out / "result.json").read_text())["clients"] == in_one_process[1]


def test_a_run_whose_superlink_is_killed_ends_with_a_line_that_says_how_to_resume(tmp_path):
    engine = Engine(tmp_path)
    process, out = engine.run(small_experiment(model=SWIN, data={"indoor": DATA["indoor"]}, clients=CLIENTS[1:]))
    log = tmp_path / "run.sites" / "superlink.log"
    pid = wait_for(lambda: log.exists() and re.search(r"Started server process \[(\d+)\]", log.read_text()))
    wait_for(lambda: (out / "metrics.jsonl").exists())
    os.kill(int(pid[1]), signal.SIGKILL)
    assert process.wait(20) == 2
    assert re.search(rf"error: .*SuperLink.*code -9.*resume with: fedhca2 resume {out}", engine.output), engine.output
    wait_for(lambda: engine.processes() == [], 30)
