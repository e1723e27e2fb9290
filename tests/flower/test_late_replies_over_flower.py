"""A site that misses rounds: its reply joins a later round, as with a simulated delay in one process."""

import pytest
from federations import Federation, PowerCutError, is_order, small_experiment

from fedhca2.federation.run import run
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher

pytestmark = pytest.mark.slow
LATE = {"weight": 0.5, "seconds": 0.5}


class Slow(Watcher):
    """Keeps the answers of `home` back until two rounds are over; may then simulate a power failure."""

    def __init__(self, grid, fails_in=None):
        self.grid, self.fails_in = grid, fails_in
        grid.silent.add("home")

    def aggregated(self, round, record, seconds):
        if round == 1:
            self.grid.silent.discard("home")
        if round == self.fails_in:
            raise PowerCutError


def experiment_of(late):
    return small_experiment(method={"name": "fedhca2"}, rounds=3, participation={"late": late})


DELAYED, OPEN = experiment_of({**LATE, "delays": {"home": 2}}), experiment_of(LATE)


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """The scores of a run in one process."""
    return run(DELAYED, tmp_path_factory.mktemp("here") / "run", watcher=Watcher()).clients


def assert_late_once(out):
    late = [(event["round"], event["clients"]) for event in RunFiles(out).of("late")]
    assert late == [(2, {"home": {"rounds": 2, "weight": 3**-0.5}})]


def test_simulated_delays_are_the_same_over_flower(tmp_path, simulated):
    assert Federation(DELAYED, tmp_path).run().clients == simulated


def test_a_site_that_misses_two_rounds_counts_in_the_third(tmp_path, simulated):
    found = Federation(OPEN, tmp_path)
    assert found.run(Slow(found.grid)).clients == simulated
    assert_late_once(found.out)
    orders = [*filter(is_order, found.grid.down)]
    assert len(orders) == 3 * 3 - 2 + 3  # the slow site gets one for three rounds; all sites get the last


def test_a_server_that_crashes_while_a_site_is_late_asks_it_again(tmp_path, simulated):
    found = Federation(OPEN, tmp_path)
    with pytest.raises(PowerCutError):
        found.run(Slow(found.grid, fails_in=1))
    found = Federation(OPEN, tmp_path)
    assert found.resume(Slow(found.grid)).clients == simulated
    assert_late_once(found.out)
