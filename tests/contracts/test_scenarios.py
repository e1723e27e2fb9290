"""Scenarios that break other implementations, from building the clients to their scores."""

from dataclasses import replace
from math import isfinite

import pytest
from array_federation import SCENARIOS
from real_federation import clients_of, data, experiment_of

from fedhca2.experiment import assign_shards
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


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in MECHANISMS if name != "fedhca2"]


@pytest.mark.parametrize("name", ["fedhca2", *OTHERS])
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_method_runs_in(name, scenario):
    rounds, brief = 2 if name == "fedhca2" else 1, {"final_epochs": 1} if METHODS[name].local.final_epochs else {}
    method, clients = {"name": name, **brief}, clients_in(scenario)
    experiment = experiment_of(method, clients, rounds)
    # Two steps each: methods that pull do so from the second on.
    shards = {name: replace(shard, train=shard.train[:4]) for name, shard in assign_shards(experiment, data()).items()}
    fleet, watcher = InProcess(clients_of(method, clients, rounds, shards)), Refusals()
    server = Server(experiment.resolved_method, fleet.profiles.values())
    scores = run_rounds(server, fleet, rounds, 0, watcher).scores
    assert not watcher.refused
    assert {name: tuple(tasks) for name, tasks in scores.items()} == {name: tasks for name, _, tasks, _ in clients}
    values = [value for tasks in scores.values() for metrics in tasks.values() for value in metrics.values()]
    assert all(map(isfinite, values))
