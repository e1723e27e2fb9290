"""A site that misses rounds: its reply joins a later round, as with a simulated delay in one process."""

import pytest
from federations import PowerCutError, flower_federation, small_experiment
from in_process_grid import InProcessGrid

from fedhca2.federation.flower.fleet import FlowerEngine
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.run import resume, run
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher

pytestmark = pytest.mark.slow
TERMS = NetworkSettings(poll=0.001, deadline=60)
LATE = {"weight": 0.5, "seconds": 0.5}


class Slow(Watcher):
    """Keeps the answers of `home` back until two rounds are over; may then simulate a power failure."""

    def __init__(self, grid: InProcessGrid, fails_in: int | None = None) -> None:
        self.grid, self.fails_in = grid, fails_in
        grid.silent.add("home")

    def aggregated(self, round, record, seconds):
        if round == 1:
            self.grid.silent.discard("home")
        if round == self.fails_in:
            raise PowerCutError


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The result of a run in one process."""
    return run(
        experiment_of({**LATE, "delays": {"home": 2}}), tmp_path_factory.mktemp("here") / "run", watcher=Watcher()
    )


def experiment_of(late):
    return small_experiment(method={"name": "fedhca2"}, rounds=3, participation={"late": late})


def late_in(run):
    return [(event["round"], event["clients"]) for event in RunFiles(run).of("late")]


def test_simulated_delays_are_the_same_over_flower(tmp_path, simulated):
    experiment = experiment_of({**LATE, "delays": {"home": 2}})
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    found = run(experiment, tmp_path / "run", watcher=Watcher(), engine=FlowerEngine(grid, TERMS))
    assert found.clients == simulated.clients


def test_a_site_that_misses_two_rounds_counts_in_the_third(tmp_path, simulated):
    grid, _, _ = flower_federation(experiment_of(LATE), tmp_path / "sites")
    found = run(experiment_of(LATE), tmp_path / "run", watcher=Slow(grid), engine=FlowerEngine(grid, TERMS))
    assert late_in(tmp_path / "run") == [(2, {"home": {"rounds": 2, "weight": 3**-0.5}})]
    assert found.clients == simulated.clients
    orders = [message for message in grid.down if message.metadata.message_type == "train"]
    assert len(orders) == 3 * 3 - 2 + 3  # the slow site gets one order for three rounds, and all get the last one


def test_a_server_that_crashes_while_a_site_is_late_asks_it_again(tmp_path, simulated):
    experiment = experiment_of(LATE)
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    with pytest.raises(PowerCutError):
        run(experiment, tmp_path / "run", watcher=Slow(grid, fails_in=1), engine=FlowerEngine(grid, TERMS))
    grid, _, _ = flower_federation(experiment, tmp_path / "sites")
    found = resume(tmp_path / "run", watcher=Slow(grid), engine=FlowerEngine(grid, TERMS))
    assert late_in(tmp_path / "run") == [(2, {"home": {"rounds": 2, "weight": 3**-0.5}})]
    assert found.clients == simulated.clients
