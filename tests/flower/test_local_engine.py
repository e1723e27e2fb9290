"""`fedhca2 run --engine flower-local`: interrupted, resumed, killed; what it contacts and what it leaves behind."""

import json
import os
import re
import signal

import pytest
from deployment import Command, hurry, left, wait_for
from federations import assert_equal, in_memory, processes_of
from safetensors.torch import load_file

from fedhca2.deployment.trained import evaluate
from fedhca2.reports.pictures import sample_tiles
from fedhca2.run_folder.reader import RunFiles

pytestmark = pytest.mark.slow


def start(folder, *words, **settings):
    """Start a command whose processes wait less, and write down whom they contact."""
    with hurry():
        return Command(folder, *words, CONTACTS=str(folder / "contacts"), **settings)


def start_run(folder, experiment):
    (folder / "small.yaml").write_text(experiment.to_yaml())
    return start(folder, "run", "small.yaml", "--engine", "flower-local", "--out", folder / "run")


@pytest.fixture(scope="module")
def experiment():
    return processes_of("road", "home")


@pytest.fixture(scope="module")
def interrupted(experiment, tmp_path_factory):
    """A run that was asked to stop in its first round."""
    folder = tmp_path_factory.mktemp("engine")
    command = start_run(folder, experiment)
    metrics = folder / "run" / "metrics.jsonl"
    wait_for(lambda: command.process.poll() is not None or (metrics.exists() and "2 clients" in command.output))
    pids = command.processes
    command.process.send_signal(signal.SIGINT)
    return folder, *command.wait(240), pids


@pytest.fixture(scope="module")
def resumed(interrupted):
    """The same run, resumed, with the clock jumping by an hour in its second round."""
    folder, *_ = interrupted
    ahead = folder / "ahead"
    ahead.write_text("0")
    command = start(folder, "resume", folder / "run", output="resumed", AHEAD=str(ahead))
    wait_for(lambda: "2 clients" in command.output or command.process.poll() is not None)
    ahead.write_text("3600")
    code, output = command.wait(240)
    assert code == 0, output
    return folder / "run", output


@pytest.fixture(scope="module")
def in_one_process(experiment):
    """Models and scores of the same run in one process."""
    return in_memory(experiment)


def test_an_interrupted_run_stops_after_its_round_and_leaves_no_process(interrupted):
    folder, code, output, pids = interrupted
    assert code == 128 + signal.SIGINT, output
    assert [path.name for path in (folder / "run" / "checkpoints").iterdir()] == ["round-000001"]
    wait_for(lambda: left(pids) == [], 5)


def test_a_resumed_run_has_the_models_and_scores_of_one_process(resumed, in_one_process):
    (out, output), (models, scores) = resumed, in_one_process
    assert "the SuperLink has ended this Flower run; continuing in a new run" in output  # when the clock jumped
    assert json.loads((out / "result.json").read_text())["clients"] == scores
    assert_equal({client: load_file(out / "models" / f"{client}.safetensors") for client in models}, models)
    assert evaluate(out, lambda name: None).clients == scores


def test_a_finished_run_has_pictures_of_every_client(resumed):
    files = RunFiles(resumed[0])
    tasks = {client: list(sample_tiles(files, client, 0)) for client in files.tasks}
    assert tasks == {"road": ["semseg"], "home": ["depth", "normals"]}


def test_nothing_but_loopback_is_contacted(resumed):
    contacts = resumed[0].with_name("contacts").read_text()
    assert set(contacts.split()) <= {"127.0.0.1", "localhost", "::1"}


def test_no_process_is_left_behind_when_the_run_is_killed(tmp_path):
    command = start_run(tmp_path, processes_of("home"))
    wait_for(lambda: len(command.processes) >= 5)  # itself, the SuperLink, the proxy, the site, its SuperNode
    pids = command.processes
    command.process.kill()
    command.process.wait()
    wait_for(lambda: left(pids) == [], 30)


def test_a_site_that_is_killed_is_started_again_and_the_run_completes(tmp_path, experiment, in_one_process):
    command = start_run(tmp_path, experiment)
    log = tmp_path / "run.sites" / "home.log"
    pid = wait_for(lambda: log.exists() and re.search(r"process (\d+) ", log.read_text()))
    wait_for(lambda: "2 clients" in command.output)
    os.kill(int(pid[1]), signal.SIGKILL)
    code, output = command.wait(240)
    assert (code, "site home has ended with code -9 and is started again" in output) == (0, True), output
    assert json.loads((tmp_path / "run" / "result.json").read_text())["clients"] == in_one_process[1]


def test_a_run_whose_superlink_is_killed_ends_with_a_line_that_says_how_to_resume(tmp_path):
    command = start_run(tmp_path, processes_of("home"))
    log = tmp_path / "run.sites" / "superlink.log"
    pid = wait_for(lambda: log.exists() and re.search(r"Started server process \[(\d+)\]", log.read_text()))
    wait_for((tmp_path / "run" / "metrics.jsonl").exists)
    pids = command.processes
    os.kill(int(pid[1]), signal.SIGKILL)
    code, output = command.wait(20)
    assert code == 2
    assert re.search(rf"error: .*SuperLink.*code -9.*resume with: fedhca2 resume {tmp_path / 'run'}", output), output
    wait_for(lambda: left(pids) == [], 30)
