"""The federation as processes on loopback, with TLS and authenticated sites: crashes, strangers, a hostile server.

Sites have the shortest files there can be, and are the same processes for all tests.
"""

import json
import subprocess
from contextlib import contextmanager, nullcontext

import pytest
from deployment import Deployment, free_port, hurry, wait_for, warmed
from federations import PROCESSES, assert_equal, in_memory, processes_of
from hostile import Node, working
from hostile_server import ANSWERS, ATTACKS, PRIVATE, STOCK, THRIFTY, play

from fedhca2.clients.privacy import epsilon
from fedhca2.federation.flower.deploy.link import make_keys, make_site_keys
from fedhca2.federation.flower.deploy.processes import start, stop
from fedhca2.federation.flower.deploy.secagg_site import MASK, Steps
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.records import STAGE, header_of

pytestmark = pytest.mark.slow
NOISE = 2.0
SITES = ("road", STOCK)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("deployment")
    with hurry(), Deployment(folder, processes_of(*PROCESSES)) as found:
        for name in found.files:
            found.say_little(name, sums={"rows": 2})  # one of three sites loses power
        found.start_site(STOCK, nullcontext)  # it is attacked, so it is started from nothing, as a site is
        found.start_site("road")
        yield found


def serve(deployment, experiment, out, *options):
    config = out.with_suffix(".yaml")
    config.write_text(experiment.to_yaml())
    return deployment.serve(config, out, *options)


def supernode(deployment, folder, *options):
    """The output of a SuperNode with these options until it gives up."""
    log = folder / "supernode.log"
    command = ["flower-supernode", "--superlink", deployment.public, "--isolation", "process"]
    command += ["--host", "127.0.0.1", "--port", str(free_port()), "--max-retries", "1", *options]
    with warmed():
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
    key = deployment.keys / "sites" / STOCK / "node.key"
    keys = ["--root-certificates", str(tmp_path / "other" / "ca.crt"), "--auth-supernode-private-key", str(key)]
    assert "CERTIFICATE_VERIFY_FAILED" in supernode(deployment, tmp_path, *keys)


def test_plain_text_is_refused(deployment, tmp_path):
    supernode(deployment, tmp_path, "--insecure")


@contextmanager
def without_power(deployment, name, stage):
    """A site that loses power in this stage of secure aggregation, before it answers."""
    node = Node(deployment.public, deployment.keys / "sites" / name)
    app = make_app(Site(SiteConfig.load(deployment.files[name])))

    def answer(message, context):
        if header_of(message.content).get(STAGE) == stage:
            stop.set()
            node.deactivate()  # so that no one gets its answer
        return app(message, context)

    with working(node, answer) as stop:
        yield


def encoder_of(tensors):
    return {name: tensor for name, tensor in tensors.items() if name.startswith("encoder.")}


def test_a_secure_sum_is_the_mean_of_those_that_stayed(deployment, tmp_path):
    experiment = processes_of(*SITES, "shop", method={"name": "fedper"}, rounds=1, secure_aggregation={})
    wait_for(lambda: all("SuperNode ID" in deployment.log(name) for name in SITES))  # before the third loses power
    with without_power(deployment, "shop", MASK):
        process = serve(deployment, experiment, tmp_path / "run", "--min-clients", "2", "--deadline", "60")
        assert process.wait(120) == 0, deployment.log("serve")
    alone = in_memory(processes_of(*SITES, method="local", rounds=1))[0]  # has the rows that were masked
    bound = 1.5 * Steps(8.0, 3).size / 2 + 3e-7  # half a step of each of three, halved, and float32's rounding
    for model in deployment.models(tmp_path / "run", SITES).values():
        for name, tensor in encoder_of(model).items():
            mean = sum(alone[site][name].double() for site in SITES) / 2
            assert (tensor - mean).abs().max() <= bound, name


@pytest.fixture(scope="module")
def answers(deployment):
    """To every attack, of a site with minimal settings, and of one that also has a budget of three updates."""
    budget = {"clip": 1.0, "noise": NOISE, "epsilon": epsilon(NOISE, 3) * (1 + 1e-9)}
    deployment.say_little(THRIFTY, privacy=budget)
    deployment.start_site(THRIFTY)
    secret = deployment.folder / "sites" / "state" / f"small-{PRIVATE}" / STOCK / "model.safetensors"
    code = deployment.folder / "code.py"
    code.write_text(f"open({str(deployment.folder / 'has run')!r}, 'w')\n")
    experiment = processes_of(STOCK, THRIFTY, rounds=20, guard={"noise": NOISE})
    found = play(deployment.link, experiment, secret, code)
    stop([deployment.processes[THRIFTY]])
    return found


attack = pytest.mark.attack


@attack
@pytest.mark.parametrize("name", ATTACKS)
def test_the_site_says_no_and_why(answers, name, tell):
    answer = answers[name]
    said = " ".join(str(answer[key]) for key in ("cannot", "declined", "failed") if answer.get(key))
    tell("hostile server", name, said)
    assert ANSWERS[name] in said, answer


@attack
def test_nothing_private_comes_back(answers):
    for name in ATTACKS:
        answer = answers[name]
        parts = {slot.partition(".")[0] for slot in [*answer.get("slots", ()), *answer.get("agreement", ())]}
        assert parts <= {"encoder", "decoder"}, name
        assert not answer.get("metrics"), name


@attack
@pytest.mark.parametrize("name", [name for name in ATTACKS if "rows of" in name or "a scale of" in name])
def test_a_site_that_declines_still_trains_and_sends_numbers(answers, name):
    answer = answers[name]
    assert (answer["finite"], answer["failed"], set(answer["losses"])) == (True, "", {"depth", "normals"})
    assert answer["values"] == answers["at last"]["values"] > 0


@attack
@pytest.mark.usefixtures("answers")
def test_a_budget_allows_no_more_updates_than_it_says(deployment):
    ledger = (deployment.folder / "sites" / "state" / f"{THRIFTY}.ledger.jsonl").read_text().splitlines()
    assert len(ledger) == 3  # one of them in the run whose scores were asked for


@attack
@pytest.mark.usefixtures("answers")
def test_code_that_is_named_does_not_run(deployment):
    assert not (deployment.folder / "has run").exists()


@attack
@pytest.mark.usefixtures("answers")
def test_nobody_but_the_superlink_is_contacted_or_looked_up(deployment):
    assert set(deployment.contacts.read_text().split()) == {"127.0.0.1"}


@attack
def test_runs_before_and_after_the_attacks_are_as_usual(answers):
    assert set(answers["at first"]["metrics"]) == {"depth", "normals"}  # final scores are sent by default
    assert answers["at last"]["declined"] == answers["at last"]["failed"] == ""


@attack
@pytest.mark.usefixtures("answers")
def test_a_site_logs_what_it_refuses(deployment):
    log = deployment.log(STOCK)
    assert all(words.split("(")[-1] in log for words in ANSWERS.values() if "in site.yaml" in words)


def test_after_the_deaths_of_server_and_sites_scores_and_models_are_those_of_one_process(deployment, tmp_path):
    out, experiment = tmp_path / "run", processes_of(*SITES, rounds=3, epochs=10)
    serve(deployment, experiment, out)  # its rounds are long enough for sites to die in
    wait_for(lambda: (out / "checkpoints" / "round-000001").exists())
    deployment.kill("serve")
    assert not (out / "result.json").exists()
    earlier = len(deployment.log(STOCK))
    process = deployment.serve(out, out, "--spool")
    wait_for(lambda: f"round 3 of small as {STOCK}" in deployment.log(STOCK)[earlier:])
    deployment.kill(STOCK)
    deployment.processes["road"].terminate()
    deployment.processes["road"].wait(30)
    deployment.start_stock_site("road")
    deployment.start_site(STOCK)
    assert process.wait(240) == 0, deployment.log("serve")
    models, scores = in_memory(experiment)
    assert json.loads((out / "result.json").read_text())["clients"] == scores
    assert_equal(deployment.models(out, SITES), models)
