import json

import numpy as np
import pytest

from fedhca2.configs import built_in_names
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import complete, join_baselines, known_runs, plan_runs, run_all
from fedhca2.methods import resolve
from fedhca2.reports.layouts import write_comparison
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Watcher
from made_run import made_run
from small import MECHANISMS
from small_run import quickly, small


class CrashError(Exception):
    """Stops a run in the middle."""


class Crashing(Watcher):
    """A watcher that only crashes at the end of one round."""

    def __init__(self, crashes_at=None):
        self.crashes_at = crashes_at

    def aggregated(self, round, *_):
        if round == self.crashes_at:
            raise CrashError


def test_local_comes_first_and_once(tmp_path):
    runs = plan_runs(small(), ["fedavg", "local"], 1, tmp_path)
    assert [run.experiment.method_name for run in runs] == ["local", "fedavg"]


def test_every_seed_has_its_own_baseline(tmp_path):
    runs = plan_runs(small(seed=4), ["fedavg"], 2, tmp_path)
    assert [run.baseline for run in runs[2:]] == [tmp_path / "local" / "seed-4", tmp_path / "local" / "seed-5"]


def test_the_own_method_keeps_its_settings(tmp_path):
    runs = plan_runs(small({"name": "fedhca2", "c": 0.2}), ["fedhca2"], 1, tmp_path)
    assert runs[1].experiment.resolved_method.encoder.c == 0.2


def test_other_methods_have_the_settings_that_the_experiment_gives_them(tmp_path):
    experiment = small("fedper", methods={"fedhca2": {"groups": True}, "matfl": {"clusters": 2}})
    _, ours, theirs, default = plan_runs(experiment, ["fedhca2", "matfl", "fedavg"], 1, tmp_path)
    assert ours.experiment.resolved_method == resolve("fedhca2", {"groups": True}).over(3)
    assert theirs.experiment.resolved_method == resolve("matfl", {"clusters": 2}).over(3)
    assert default.experiment.resolved_method == resolve("fedavg").over(3)


def test_settings_of_other_methods_do_not_make_another_run(tmp_path):
    local, ours = plan_runs(small(), ["fedavg"], 1, tmp_path)
    finish(local, 10.0)
    finish(ours, 11.0)
    again = plan_runs(small(methods={"fedhca2": {"groups": True}}), ["fedavg"], 1, tmp_path)
    assert all(run.finished for run in again)


@pytest.mark.parametrize("config", [name for name in built_in_names() if "supplement/table1/" in name])
def test_fedhca2_forms_groups_in_the_papers_comparisons_from_any_of_their_configs(config, tmp_path):
    runs = plan_runs(Experiment.load(config), ["fedhca2"], 1, tmp_path)
    method = next(run.experiment.resolved_method for run in runs if run.experiment.method_name == "fedhca2")
    assert method.encoder.groups


def test_runs_of_other_settings_are_refused(tmp_path):
    made_run(tmp_path / "local" / "seed-0", "local")
    with pytest.raises(UserError, match="got different"):
        plan_runs(small(), ["fedavg"], 1, tmp_path)


def test_the_tables_are_written(tmp_path):
    runs = [made_run(tmp_path / "a", "local"), made_run(tmp_path / "b", "fedhca2")]
    write_comparison(runs, tmp_path)
    assert {"table.md", "table.csv", "table.tex"} <= {path.name for path in tmp_path.iterdir()}


@pytest.mark.slow
def test_what_is_finished_is_not_run_again(tmp_path):
    runs = plan_runs(small(rounds=1), ["fedavg"], 1, tmp_path)
    list(run_all(runs, Watcher()))
    list(run_all(runs, Crashing(crashes_at=0)))
    assert json.loads((runs[1].folder / "result.json").read_text())["baseline"] is not None


@pytest.mark.slow
def test_an_interrupted_run_goes_on(tmp_path):
    runs = plan_runs(small(rounds=2), [], 1, tmp_path)
    with pytest.raises(CrashError):
        list(run_all(runs, Crashing(crashes_at=1)))
    list(run_all(runs, Watcher()))
    assert runs[0].finished


def finish(run, score):
    """Write the files of a finished run in which every client reached this score."""
    scores = {"road": {"semseg": {"miou": score}}, "shop": {"sal": {"max_f": score}}}
    run.folder.mkdir(parents=True)
    (run.folder / "config.yaml").write_text(run.experiment.to_yaml())
    result = {"method": run.experiment.method_name, "clients": scores, "baseline": None, "delta_m": None}
    (run.folder / "result.json").write_text(json.dumps(result | {"delta_m_by_client": None}))


def test_a_run_that_finished_before_local_is_compared_with_it_later(tmp_path):
    local, ours = plan_runs(small(), ["fedavg"], 1, tmp_path)
    finish(ours, 11.0)
    join_baselines([local, ours])
    assert not ours.joined
    finish(local, 10.0)
    join_baselines([local, ours])
    result = json.loads((ours.folder / "result.json").read_text())
    assert result["baseline"] == json.loads((local.folder / "result.json").read_text())["clients"]
    assert (result["delta_m"], result["delta_m_by_client"]) == pytest.approx((10, 10))


def test_only_methods_with_every_seed_are_compared(tmp_path):
    runs = plan_runs(small(), ["fedavg"], 2, tmp_path)
    for run in runs[:3]:
        run.folder.mkdir(parents=True)
        (run.folder / "result.json").write_text("{}")
    assert [run.name for run in complete(runs)] == ["local, seed 0", "local, seed 1"]


def test_a_comparison_is_known_by_its_runs_with_local_first(tmp_path):
    for method in ("fedavg", "local"):
        made_run(tmp_path / method / "seed-0", method)
    assert [folder.parent.name for folder in known_runs(tmp_path)] == ["local", "fedavg"]


@pytest.mark.slow
def test_all_methods_begin_with_the_same_images_and_models(tmp_path):
    runs = list(quickly(list, run_all(plan_runs(small(rounds=1), MECHANISMS, 1, tmp_path), Watcher())))
    own = [run for run in runs if not run.experiment.resolved_method.local.frozen]  # frozen decoders are shared
    images = {(run.folder / "partition.json").read_bytes() + _samples(run, ("image", "label.")) for run in runs}
    models = {_samples(run, ("before.",)) for run in own}
    assert (len(runs), len(own), len(images), len(models)) == (len(MECHANISMS), len(MECHANISMS) - 1, 1, 1)


def _samples(run, kinds):
    """The clients' sample images and labels, or their models' predictions before training."""
    files = [np.load(path) for path in sorted((run.folder / "samples").iterdir())]
    return b"".join(arrays[name].tobytes() for arrays in files for name in arrays.files if name.startswith(kinds))


def test_the_table_says_which_settings_are_not_defaults(tmp_path):
    experiment = small("fedper", methods={"fedhca2": {"groups": True}})
    runs = plan_runs(experiment, ["fedhca2", "fedavg"], 1, tmp_path)
    for run in runs:
        finish(run, 10.0)
    write_comparison([RunFiles.open(run.folder) for run in runs], tmp_path)
    note = (tmp_path / "table.md").read_text("utf-8").splitlines()[-1]
    assert "defaults: fedhca2: groups=True." in note
