"""A hostile server at a real SuperLink: sites refuse what their own files do not allow, and lose nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from deployment import Deployment
from federations import small_experiment
from hostile_server import ATTACKS, FRUGAL, PRIVATE, STOCK

from fedhca2.clients.accounting import epsilon

pytestmark = [pytest.mark.slow, pytest.mark.attack]
NOISE = 2.0
# Every Python process of a site imports this first: it writes down whom it looks up or talks to, and waits for nobody
# for 3 s, as a SuperNode does between two looks for messages.
LISTENER = """
import os, sys, time

sleep = time.sleep
time.sleep = lambda seconds: sleep(min(seconds, 0.1))

def hear(event, arguments):
    host = None
    if event in ("socket.connect", "socket.sendto") and isinstance(arguments[1], tuple):
        host = arguments[1][0]
    elif event == "socket.getaddrinfo":
        host = arguments[0]
    if host is not None:
        with open(os.environ["CONTACTS"], "a") as file:
            file.write(f"{host}\\n")

sys.addaudithook(hear)
"""
KEPT = ("client", "tasks", "state", "data")  # of what a local federation writes: what a site has to say


class Scene:
    """What is left after all attacks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.code, self.contacts, self.answers = folder / "code.py", folder / "contacts", folder / "answers.json"
        self.secret = folder / "sites" / "state" / f"small-{PRIVATE}" / STOCK / "model.safetensors"

    def play(self, deployment: Deployment) -> None:
        self.code.write_text(f"open({str(self.folder / 'has run')!r}, 'w')\n")
        command = [sys.executable, str(Path(__file__).with_name("hostile_server.py")), deployment.link.address]
        command += [str(deployment.keys), str(deployment.config), str(self.answers), str(self.secret), str(self.code)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stderr
        self.told = json.loads(self.answers.read_text())


def say_little(deployment):
    """Sites with the shortest files there can be; one has a budget of two updates besides."""
    for name, path in deployment.files.items():
        site = {key: value for key, value in yaml.safe_load(path.read_text()).items() if key in KEPT}
        if name == FRUGAL:
            site["privacy"] = {"clip": 1.0, "noise": NOISE, "epsilon": epsilon(NOISE, 3) * (1 + 1e-9)}
        path.write_text(yaml.safe_dump(site))


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile-server")
    found = Scene(folder)
    (folder / "listener").mkdir()
    (folder / "listener" / "sitecustomize.py").write_text(LISTENER)
    experiment = small_experiment(rounds=20, guard={"noise": NOISE})
    with Deployment(folder, experiment) as deployment, pytest.MonkeyPatch.context() as patch:
        say_little(deployment)
        patch.setenv("CONTACTS", str(found.contacts))
        with pytest.MonkeyPatch.context() as listening:
            listening.setenv("PYTHONPATH", str(folder / "listener"), prepend=":")
            for name in (STOCK, FRUGAL):
                deployment.start_site(name)
        found.play(deployment)
        found.log = deployment.log(STOCK)
        yield found


@pytest.mark.parametrize("attack", ATTACKS)
def test_the_site_says_no_and_why(scene, attack, tell):
    answer = scene.told[attack]
    said = " ".join(str(answer[key]) for key in ("cannot", "declined", "failed") if answer.get(key))
    tell("hostile server", attack, 7 if "rows of" in attack or "a scale of" in attack else 9, said)
    assert ATTACKS[attack].answer in said, answer


def test_nothing_private_comes_back(scene):
    for attack in ATTACKS:
        answer = scene.told[attack]
        parts = {slot.partition(".")[0] for slot in [*answer.get("slots", ()), *answer.get("agreement", ())]}
        assert parts <= {"encoder", "decoder"}, attack
        assert not answer.get("metrics"), attack


@pytest.mark.parametrize("attack", [name for name in ATTACKS if "rows of" in name or "a scale of" in name])
def test_a_site_that_declines_trains_on_and_sends_numbers(scene, attack):
    answer = scene.told[attack]
    assert (answer["finite"], answer["failed"], set(answer["losses"])) == (True, "", {"depth", "normals"})
    assert answer["values"] == scene.told["at last"]["values"] > 0


def test_a_budget_allows_no_more_updates_than_it_says(scene):
    ledger = (scene.folder / "sites" / "state" / f"{FRUGAL}.ledger.jsonl").read_text().splitlines()
    assert len(ledger) == 3  # one of them in the run whose scores were asked for


def test_code_that_is_named_does_not_run(scene):
    assert not (scene.folder / "has run").exists()


def test_nobody_but_the_superlink_is_contacted_or_looked_up(scene):
    assert set(scene.contacts.read_text().split()) == {"127.0.0.1"}


def test_an_honest_run_goes_on_after_all_attacks(scene):
    assert scene.told["at last"]["declined"] == scene.told["at last"]["failed"] == ""


def test_the_scores_after_the_last_round_are_told_by_default(scene):
    assert set(scene.told["at first"]["metrics"]) == {"depth", "normals"}


def test_a_site_logs_what_it_refuses(scene):
    assert all(
        attack.answer.split("(")[-1] in scene.log for attack in ATTACKS.values() if "in site.yaml" in attack.answer
    )
