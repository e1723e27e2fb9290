"""Secure aggregation over Flower: the numbers of a plain run, and a server that never sees a row."""

import json
from dataclasses import replace
from functools import cache

import pytest
import torch
from federations import Federation, altered, assert_equal, cut_off, failing, site_configs, small_experiment

from fedhca2.clients import save_reply
from fedhca2.clients.state_file import REPLY_FILE
from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.consent import Invitation
from fedhca2.federation.flower.deploy.secagg_site import MASK, Steps
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.worker import make_app
from fedhca2.federation.flower.records import STAGE, header_of
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.run import make_guard
from fedhca2.params import Slot
from fedhca2.run_folder.records import Watcher

pytestmark = pytest.mark.slow
ENCODER = Slot("encoder")
OUTDOOR = ["outdoor-normals", "outdoor-semseg"]
FLOAT32 = 3e-7  # what rounding does to values below 4
FEDPER, FEDAVG = {"name": "fedper"}, {"name": "fedavg"}
HCA = {"name": "fedhca2", "decoder": None}


class Rounds:
    """One or more rounds of sites in this process, and what their server received and sent."""

    def __init__(self, experiment, folder, change=lambda grid: None):
        self.federation = Federation(experiment, folder)
        self.grid, self.sites = self.federation.grid, self.federation.sites
        self.fleet = self.federation.fleet(min_clients=2, retries=0)
        change(self.grid)
        self.fleet.gather()
        self.guard, self.heard, self.sent, self.records = make_guard(experiment, self.fleet), [], [], []
        self.faults_at_end = self.guard.faults_at_end
        run_rounds(self.guard.server, self.fleet, experiment.rounds, 0, Watcher(), guard=self)

    def step(self, state, replies, sent, at_work):
        """Stands in for the guard's, and records what it gets and returns."""
        self.heard.append({reply.client: dict(reply.rows) for reply in replies})
        state, deliveries, record = self.guard.step(state, replies, sent, at_work)
        self.sent.append(deliveries)
        self.records.append(record)
        return state, deliveries, record

    @property
    def clients(self):
        return {name: site.client for name, site in self.sites.items()}


def secured(method, rounds=1, privacy=None, **settings):
    return small_experiment(method=method, rounds=rounds, secure_aggregation=settings, privacy=privacy or {})


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The first round of a method without secure aggregation: the same training, with rows in the clear."""

    @cache
    def run(method):
        return Rounds(small_experiment(method=json.loads(method), rounds=1), tmp_path_factory.mktemp("plain"))

    return lambda method: run(json.dumps(method))


@pytest.mark.parametrize("method", [FEDAVG, {"name": "fedprox"}, {"name": "fedper", "by": "samples"}])
def test_everybody_gets_the_mean_of_a_plain_run_within_its_quantisation(method, plain, tmp_path):
    found = Rounds(secured(method), tmp_path).sent[0]
    bound = 3 * 0.5 * Steps(8.0, 3).size / 2 + FLOAT32  # half a step of each of three, who add half of a sum at most
    for client, slots in plain(method).sent[0].items():
        for slot, delivery in slots.items():
            assert (found[client][slot].row - delivery.row).abs().max() <= bound, (client, slot)


def arrays_up(federation):
    contents = [message.content for message in federation.grid.up]
    return [array for content in contents for record in content.array_records.values() for array in record.values()]


def test_nothing_but_masked_numbers_leaves_a_site(tmp_path):
    found = Rounds(secured(FEDAVG), tmp_path)
    assert found.heard == [{"home": {}, "outdoor-normals": {}, "outdoor-semseg": {}}]
    assert [array.dtype for array in arrays_up(found)] == ["int32"] * 3


def test_a_round_with_too_few_clients_for_a_sum_changes_no_model(plain, tmp_path):
    def change(grid):
        for client in OUTDOOR:
            grid.replace(client, lambda app: failing(app, lambda sent: header_of(sent.content).get(STAGE) == MASK))

    found = Rounds(secured(FEDPER), tmp_path, change)
    assert found.sent == [{}]
    for name, client in found.clients.items():
        assert torch.equal(client.rows([ENCODER])[ENCODER], plain(FEDPER).heard[0][name][ENCODER])


@pytest.mark.parametrize(("method", "scale"), [(HCA, 0.1), ({"name": "upgrad"}, 1.0)])
def test_clients_get_the_weighted_sum_that_sketches_call_for(method, scale, plain, tmp_path):
    experiment = secured(method, sketch=1024, clip=1.0)
    found = Rounds(experiment, tmp_path)
    names = sorted(found.clients)
    sketches = torch.stack([found.heard[0][name][ENCODER] for name in names]).double()
    weights = experiment.resolved_method.encoder.weights(sketches @ sketches.T)
    expected = sum(
        weight * plain(method).heard[0][name][ENCODER].double() for weight, name in zip(weights, names, strict=True)
    )
    added = found.sent[0]["home"][ENCODER].addends[0]
    assert (added.row - expected).abs().max() <= 3 * weights.max() * Steps(1.0, 3).size / 2 + 1e-9
    assert added.scale == (scale,)


def test_the_server_gets_only_the_sketch_of_an_update(tmp_path):
    found = Rounds(secured(HCA, sketch=64), tmp_path)
    assert {rows[ENCODER].numel() for rows in found.heard[0].values()} == {64}
    assert sorted({(array.dtype, array.shape) for array in arrays_up(found)})[0] == ("float32", (64,))


def test_weights_are_learned_from_sums_as_from_rows(tmp_path):
    found = Rounds(secured(HCA, rounds=2, sketch=1024, clip=1.0), tmp_path)
    assert all(weights != (0.1,) for weights in found.records[1].weights.values())


def test_a_sketch_that_is_longer_than_training_can_make_it_is_refused(tmp_path):
    class Boasting(Site):
        def seen(self, invitation, order):
            reply = super().seen(invitation, order)
            return replace(reply, rows={slot: 1e6 * row for slot, row in reply.rows.items()})

    experiment = secured(HCA, sketch=64, clip=1.0)
    boasting = Boasting(site_configs(experiment, tmp_path)["home"])
    found = Rounds(experiment, tmp_path, lambda grid: grid.replace("home", lambda app: make_app(boasting)))
    assert "guard.reach" in found.records[0].refused["home"]
    assert set(found.sent[0]) == set(OUTDOOR)


@pytest.mark.parametrize("images", [2, 10**9])
def test_a_sum_that_moved_farther_than_its_rows_can_is_delivered_to_nobody(images, tmp_path):
    class Poisoning(Site):
        def perform(self, invitation, order):
            reply = super().perform(invitation, order)
            if order.round == 1:
                (saved,) = self.config.state.glob(f"*/{self.config.client}/{REPLY_FILE}")
                save_reply(saved, replace(reply, rows={ENCODER: reply.rows[ENCODER] + 0.5}))
            return reply

    experiment = secured(FEDPER, rounds=2)
    poisoning = Poisoning(site_configs(experiment, tmp_path)["home"])
    lying = altered({"samples": images}, make_app(poisoning), "query")
    found = Rounds(experiment, tmp_path, lambda grid: grid.replace("home", lambda app: lying))
    assert found.sent[0]
    assert found.sent[1] == {}
    assert "expected a sum that moved by at most" in found.records[1].dropped["outdoor-semseg"]


ONE_ROW = torch.tensor([1.0, 1e-9, 1e-9], dtype=torch.float64)


@pytest.mark.parametrize("method", [FEDPER, {"name": "fedper", "by": "samples"}])
def test_a_server_that_asks_for_one_row_in_a_sum_gets_nothing(method, tmp_path, monkeypatch):
    monkeypatch.setattr("fedhca2.aggregation.means.mean_weights", lambda counts: ONE_ROW)
    found = Rounds(secured(method), tmp_path)
    assert found.sent[0] == {}
    assert all("no sum: " in why or "(sums in site.yaml)" in why for why in found.records[0].dropped.values())
    assert not [message for message in found.grid.up if message.content.array_records]


def test_noise_is_added_before_rows_are_masked(plain, tmp_path):
    found = Rounds(secured(FEDPER, privacy={"clip": 1e-3, "noise": 100.0}), tmp_path).sent[0]["home"][ENCODER].row
    mean = plain(FEDPER).sent[0]["home"][ENCODER].row
    assert 0.9 * 0.1 / 3**0.5 < (found - mean).std() < 1.1 * 0.1 / 3**0.5


def test_a_round_that_was_added_up_before_a_crash_is_added_up_again_to_the_same_models(tmp_path):
    experiment = secured(FEDAVG, rounds=2)
    straight, crashed = Rounds(experiment, tmp_path / "straight"), cut_off(experiment, tmp_path, fails_in=0)
    crashed.resume()
    assert_equal(crashed.models, straight.federation.models)


def test_every_client_that_took_part_is_accounted_for(tmp_path):
    experiment = secured(FEDPER, privacy={"clip": 0.1, "noise": 4.0})
    result = Federation(experiment, tmp_path).run()
    updates = {client: spent["updates"] for client, spent in result.privacy["clients"].items()}
    assert updates == dict.fromkeys(["home", *OUTDOOR], 1)


@pytest.mark.parametrize(("settings", "found"), [(None, "none"), ({"sketch": 2048}, "a sketch of 2048")])
def test_a_site_with_sums_only_refuses_other_experiments(settings, found, tmp_path):
    experiment = small_experiment(method=HCA, secure_aggregation=settings)
    site = site_configs(experiment, tmp_path)["home"].model_copy(update={"sums_only": True})
    with pytest.raises(UserError, match=rf"at most 1024 \(sums_only in site.yaml\), got {found}"):
        Invitation.for_experiment(experiment, "run1").accept(site)
