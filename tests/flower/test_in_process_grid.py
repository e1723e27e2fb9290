"""The federation over Flower's serialisation is the federation in memory, bit for bit, also after a crash."""

from functools import cache

import pytest
import torch
from federations import Nobody, flower_federation, in_memory, small_experiment

from fedhca2.federation.flower.run import resume, run
from fedhca2.federation.flower.terms import Terms
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.methods import METHODS

pytestmark = pytest.mark.slow
TERMS = Terms(poll=0.001, deadline=60)


class PowerCutError(Exception):
    pass


class Watching(Nobody):
    """Lets the power fail at the end of a round, before its checkpoint."""

    def __init__(self, fails_in=None):
        self.fails_in = fails_in

    def started(self, *_):
        pass

    def aggregated(self, round, *_):
        if round == self.fails_in:
            raise PowerCutError


def experiment_of(method):
    unify = {"decoder": {"every": 2}, "head": {"every": 2}} if method == "fedsta" else {}  # within two rounds
    return small_experiment(method={"name": method, **unify}, rounds=3)


@cache
def expected(method):
    return in_memory(experiment_of(method))


def models(sites):
    return {name: site._seat.client.personal.model.state_dict() for name, site in sites.items()}


def assert_equal(found, wanted):
    for client, tensors in wanted.items():
        for name, tensor in tensors.items():
            assert torch.equal(tensor, found[client][name]), (client, name)


@pytest.mark.parametrize("method", METHODS)
def test_flower_gives_the_same_models_and_scores_as_in_process(method, tmp_path):
    experiment = experiment_of(method)
    _, sites, fleet = flower_federation(experiment, tmp_path)
    fleet.gather()
    server = Server(experiment.resolved_method, fleet.profiles.values())
    assert run_rounds(server, fleet, experiment.rounds, 0, Nobody()).scores == expected(method)[1]
    assert_equal(models(sites), expected(method)[0])


@pytest.mark.parametrize("method", METHODS)
def test_a_run_whose_server_and_sites_all_crash_resumes_to_the_same_models_and_scores(method, tmp_path):
    experiment = experiment_of(method)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    with pytest.raises(PowerCutError):
        run(grid, experiment, tmp_path / "run", Watching(fails_in=1), TERMS)
    grid, sites, _ = flower_federation(experiment, tmp_path / "sites")
    result = resume(grid, tmp_path / "run", Watching(), TERMS)
    assert result.clients == expected(method)[1]
    assert_equal(models(sites), expected(method)[0])
