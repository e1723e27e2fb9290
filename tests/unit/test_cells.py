import json

import pytest

from fedhca2.experiment import ConfigError
from fedhca2.federation.cells import plan_cells, run_cells
from fedhca2.reports.comparison import write_comparison
from made_run import made_run
from small_run import small


class CrashError(Exception):
    """What stops a run in the middle."""


class Watcher:
    """Watches nothing, but crashes at the end of one round."""

    def __init__(self, crashes_at=None):
        self.crashes_at = crashes_at

    def started(self, *_): ...

    def batch(self, *_): ...

    def replied(self, *_): ...

    def aggregated(self, round, *_):
        if round == self.crashes_at:
            raise CrashError


def test_local_comes_first_and_once(tmp_path):
    cells = plan_cells(small(), ["fedavg", "local"], 1, tmp_path)
    assert [cell.experiment.method_name for cell in cells] == ["local", "fedavg"]


def test_every_seed_has_its_own_baseline(tmp_path):
    cells = plan_cells(small(seed=4), ["fedavg"], 2, tmp_path)
    assert [cell.baseline for cell in cells[2:]] == [tmp_path / "local" / "seed-4", tmp_path / "local" / "seed-5"]


def test_the_own_method_keeps_its_settings(tmp_path):
    cells = plan_cells(small({"name": "fedhca2", "c": 0.2}), ["fedhca2"], 1, tmp_path)
    assert cells[1].experiment.resolved_method.encoder.c == 0.2


def test_an_unknown_method_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"'fedagv' is not a method\. Did you mean 'fedavg'"):
        plan_cells(small(), ["fedagv"], 1, tmp_path)


def test_cells_of_other_settings_are_refused(tmp_path):
    made_run(tmp_path / "local" / "seed-0", "local")
    with pytest.raises(ConfigError, match="should be a run of these settings, found one with other"):
        plan_cells(small(), ["fedavg"], 1, tmp_path)


def test_the_tables_are_written(tmp_path):
    runs = [made_run(tmp_path / "a", "local"), made_run(tmp_path / "b", "fedhca2")]
    write_comparison(runs, tmp_path)
    assert {"table.md", "table.csv", "table.tex", "report.html"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_what_is_finished_is_not_run_again(tmp_path):
    cells = plan_cells(small(rounds=1), ["fedavg"], 1, tmp_path)
    list(run_cells(cells, Watcher()))
    list(run_cells(cells, Watcher(crashes_at=0)))
    assert json.loads((cells[1].folder / "result.json").read_text())["delta_m"] is not None


@pytest.mark.slow
def test_an_interrupted_cell_goes_on(tmp_path):
    cells = plan_cells(small(rounds=2), [], 1, tmp_path)
    with pytest.raises(CrashError):
        list(run_cells(cells, Watcher(crashes_at=1)))
    list(run_cells(cells, Watcher()))
    assert cells[0].finished
