import json
import os
import shutil
import signal
from pathlib import Path

import pytest
import typer

from fedhca2.cli.app import report_errors
from fedhca2.errors import UserError
from fedhca2.federation.stopping import Interrupted
from fedhca2.run_folder.reader import RunFiles
from small import MECHANISMS, unifying
from small_run import SETTINGS, CrashError, Silent, crash, models, resume_small, run_small, same_runs, small
from tiny_encoder import TINY
from warm import output_of

pytestmark = pytest.mark.slow


@pytest.fixture
def crashed(once, tmp_path):
    """A test's own run that crashed after this round, before its checkpoint."""
    return lambda experiment, at=1: shutil.copytree(once(experiment, at), tmp_path / "crashed")


@pytest.fixture
def pairs(once, crashed):
    """A straight run and a resumed one, which is equal to it bit for bit."""

    def run(experiment, at=1):
        straight, resumed = once(experiment), crashed(experiment, at)
        resume_small(resumed)
        assert same_runs(straight, resumed)
        return straight, resumed

    return run


# FedSTA, configured so, averages decoders and heads in the round that is lost and run again.
METHODS = {name: {} for name in MECHANISMS} | {"fedsta": unifying(every=1), "upgrad": {"memory": 0.5}}


@pytest.mark.parametrize("method", METHODS)
def test_a_resumed_run_equals_a_straight_one_bit_for_bit(pairs, method):
    pairs(small({"name": method, **METHODS[method]}, rounds=2))


@pytest.mark.parametrize("method", ["fedper", "scaffold"])
def test_a_client_that_is_late_resumes_bit_for_bit(pairs, method):
    _, resumed = pairs(small(method, rounds=4, participation={"late": {"delays": {"home": 2}}}))
    assert [(late["round"], late["clients"]["home"]["rounds"]) for late in RunFiles(resumed).of("late")] == [(2, 2)]


TESTED = {name: {**data, "val": 6, "test": 0.5} for name, data in SETTINGS["data"].items()}
MORE = {name: {**data, "train": 3 * data["train"]} for name, data in SETTINGS["data"].items()}
VARIANTS = {
    "an interaction": {"model": {"encoder": {"name": TINY}, "decoder_width": 8, "interaction": "cross_attention"}},
    "an encoder with its own rate": {"training": {"batch_size": 2, "encoder_rate": 1e-5}},
    "shared statistics": {"method": {"name": "fedavg", "batch_norm": "average"}},
    "one model for all": {"method": "pooled"},
    "who helps whom": {"diagnostics": {"every": 1}},
    "the middle of an epoch": {"clients": [{**client, "steps": 1} for client in SETTINGS["clients"]], "data": MORE},
    "the best model": {"evaluate_every": 1, "select": "best", "data": TESTED},
}


@pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
def test_a_variant_resumes_bit_for_bit(pairs, variant):
    straight, _ = pairs(small(rounds=2, **variant))
    assert ("interaction.project.weight" in models(straight)["home.safetensors"]) == ("model" in variant)


def test_a_resumed_run_has_the_scores_of_a_straight_one(pairs):
    one, other = pairs(small(participation={"fraction": 0.5}))
    assert RunFiles(one).outcome.clients == RunFiles(other).outcome.clients


def test_a_run_that_fell_over_before_its_first_checkpoint_begins_anew(pairs):
    pairs(small(), at=0)


def test_a_baseline_within_a_run_resumes_too(pairs):
    straight, resumed = pairs(small(baseline=True))
    assert same_runs(straight / "baseline", resumed / "baseline")


def test_a_finished_baseline_is_not_trained_again(tmp_path):
    run_small(small(baseline=True, rounds=1), tmp_path)
    (tmp_path / "result.json").unlink()
    before = (tmp_path / "baseline" / "result.json").stat().st_mtime_ns
    resume_small(tmp_path)
    assert (tmp_path / "baseline" / "result.json").stat().st_mtime_ns == before


@pytest.mark.parametrize("command", [("kill_run.py", "0", "20"), ("kill_at_every_step.py", "4")])
def test_runs_that_are_killed_end_as_if_nothing_had_happened(tmp_path, command):
    script, *options = command
    assert "equal to the straight run" in output_of(Path(__file__).parents[2] / script, tmp_path, *options)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_waits_for_the_rounds_checkpoint(once, tmp_path, number, code):
    watcher, out = Silent(1, lambda: os.kill(os.getpid(), number)), tmp_path / "run"
    with pytest.raises(Interrupted, match=f"after round 2; resume with: fedhca2 resume {out}") as stopped:
        run_small(small(checkpoints={"every": 0}), out, watcher)
    with pytest.raises(typer.Exit) as ended, report_errors():
        raise stopped.value
    assert ended.value.exit_code == code
    resume_small(out)
    assert same_runs(once(small()), out)


def test_resuming_a_finished_run_needs_more_rounds(once, tmp_path):
    run = shutil.copytree(once(small(rounds=1)), tmp_path / "my run")
    with pytest.raises(UserError, match=f"already finished.*fedhca2 report '{run}'"):
        resume_small(run)
    (run / "report.html").touch()
    with pytest.raises(UserError, match=r"rounds=N with N above 1$"):
        resume_small(run)
    assert resume_small(run, ["rounds=2"]).rounds == 2


def test_a_run_that_was_killed_before_it_had_a_config_begins_anew(once, tmp_path):
    (tmp_path / "run").mkdir()
    for name in ("partition.json", ".config.yaml.new"):
        (tmp_path / "run" / name).touch()
    run_small(small(rounds=1), tmp_path / "run")
    assert same_runs(tmp_path / "run", once(small(rounds=1)))


ROAD = {"name": "road", "data": "outdoor", "tasks": ["semseg"]}


def test_a_client_that_left_is_asked_no_more_and_a_new_one_takes_its_images(crashed):
    run, lane = crashed(small()), {"name": "lane", "data": "outdoor", "tasks": ["normals"]}
    before = RunFiles(run).partition
    assert list(resume_small(run, [f"clients={json.dumps([ROAD, lane])}"]).clients) == ["road", "lane"]
    after = RunFiles(run).partition
    assert (after["road"], sorted(after["lane"]["train"])) == (before["road"], sorted(before["shop"]["train"]))


@pytest.fixture
def _known_noise(monkeypatch):
    """Clients draw the same noise in every run: with other noise, an update can happen to be refused, and not count."""
    monkeypatch.setattr("fedhca2.clients.exchange.token_bytes", bytes)


class Mail(Silent):
    """Records what clients send, and may crash after a round."""

    def __init__(self, at=None):
        super().__init__(at, crash)
        self.sent = {}

    def replied(self, order, reply):
        self.sent |= {(order.round, reply.client, slot): row.clone() for slot, row in reply.rows.items()}


@pytest.mark.parametrize(("at", "every"), [(0, 1), (1, 1), (1, 0)])
def test_an_update_that_is_sent_again_after_a_crash_has_the_same_noise(tmp_path, at, every):
    experiment = small(privacy={"clip": 1.0, "noise": 0.1}, checkpoints={"every": every})
    before, after = Mail(at), Mail()
    with pytest.raises(CrashError):
        run_small(experiment, tmp_path, before)
    resume_small(tmp_path, watcher=after)
    again = before.sent.keys() & after.sent.keys()
    assert {round for round, _, _ in again} == ({at} if every else {0, 1})
    assert all(before.sent[key].equal(after.sent[key]) for key in again)


@pytest.mark.usefixtures("_known_noise")
def test_updates_from_before_a_crash_are_counted(pairs):
    experiment = small(privacy={"clip": 1.0, "noise": 2.0}, participation={"fraction": 0.5})
    counted = [RunFiles(out).outcome.privacy for out in pairs(experiment)]
    assert counted[0] == counted[1]
    assert sum(found["updates"] for found in counted[0]["clients"].values()) == 2 * experiment.rounds
