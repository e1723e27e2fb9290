"""The federation over Flower's serialisation is the federation in memory, bit for bit."""

import pytest
import torch
from federations import Nobody, flower_federation, in_memory, small_experiment

from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.methods import METHODS

pytestmark = pytest.mark.slow


def models_at_sites(experiment, folder):
    _, sites, fleet = flower_federation(experiment, folder)
    fleet.gather()
    server = Server(experiment.resolved_method, fleet.profiles.values())
    scores = run_rounds(server, fleet, experiment.rounds, 0, Nobody())
    return {name: site._seat.client.personal.model.state_dict() for name, site in sites.items()}, scores


@pytest.mark.parametrize("method", METHODS)
def test_flower_gives_the_same_models_and_scores_as_in_process(method, tmp_path):
    unify = {"decoder": {"every": 2}, "head": {"every": 2}} if method == "fedsta" else {}  # within two rounds
    experiment = small_experiment(method={"name": method, **unify})
    ours, scores = models_at_sites(experiment, tmp_path)
    theirs, expected = in_memory(experiment)
    assert scores == expected
    for client, tensors in theirs.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, ours[client][name]), (client, name)
