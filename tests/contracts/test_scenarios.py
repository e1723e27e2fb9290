"""Scenarios that break other implementations, from building the clients to their scores."""

from dataclasses import replace
from math import isfinite

import pytest
from array_federation import SCENARIOS
from real_federation import clients_of, experiment_of, shards_of

from fedhca2.federation.in_process import InProcess
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.methods import METHODS
from fedhca2.run_folder.records import Watcher
from small import MECHANISMS
from tiny_encoder import TINY

ENCODERS = {"plain": TINY, "wide": "test_resnet", "deep": "swin_micro"}
OUTDOOR = ("semseg", "human_parts", "sal", "normals", "edge")
INDOOR = ("semseg", "depth", "normals", "edge")


class Refusals(Watcher):
    """Records what the server could not use."""

    def __init__(self):
        self.refused = {}

    def aggregated(self, round, record, seconds):
        self.refused |= record.refused


def clients_in(scenario):
    """The clients of a scenario; one with every task has all tasks that its data set has labels for."""
    sites = [(site.dataset, site.tasks, ENCODERS[site.encoder]) for site in SCENARIOS[scenario]]
    if scenario == "a client with every task":
        sites[0] = ("outdoor", OUTDOOR, TINY)
        sites.append(("indoor", INDOOR, TINY))
    return tuple((f"c{i}", *site) for i, site in enumerate(sites))


def assert_runs(method, scenario, rounds):
    clients = clients_in(scenario)
    given = shards_of(method, clients, rounds)  # of which two steps: methods that pull do so from the second on
    shards = {name: replace(shard, train=shard.train[:4]) for name, shard in given.items()}
    fleet = InProcess(clients_of(method, clients, rounds, shards))
    server = Server(experiment_of(method, clients, rounds).resolved_method, fleet.profiles.values())
    watcher = Refusals()
    scores = run_rounds(server, fleet, rounds, 0, watcher).scores
    assert not watcher.refused
    assert {name: tuple(tasks) for name, tasks in scores.items()} == {name: tasks for name, _, tasks, _ in clients}
    values = [value for tasks in scores.values() for metrics in tasks.values() for value in metrics.values()]
    assert all(map(isfinite, values))


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_fedhca2_runs_in(scenario):
    assert_runs("fedhca2", scenario, 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in MECHANISMS if name != "fedhca2"])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_every_other_method_runs_in(name, scenario):
    brief = {"final_epochs": 1} if METHODS[name].local.final_epochs else {}
    assert_runs({"name": name, **brief}, scenario, 1)
