import json

import numpy as np
import pytest

from fedhca2.configs import built_in_names
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.comparison_runs import complete_runs, find_runs, join_baselines, plan_runs, run_all
from fedhca2.methods import resolve
from fedhca2.reports.layouts import write_comparison
from fedhca2.run_folder.reader import RunFiles
from made_run import made_run
from small import MECHANISMS
from small_run import CrashError, Silent, crash, quickly, small


def test_local_comes_first_and_once_with_every_seed(tmp_path):
    runs = plan_runs(small(seed=4), ["fedavg", "local"], 2, tmp_path)
    own = [tmp_path / "local" / "seed-4", tmp_path / "local" / "seed-5"]
    assert [(run.folder, run.baseline) for run in runs[:2]] == [(folder, None) for folder in own]
    assert [(run.experiment.method_name, run.baseline) for run in runs[2:]] == [("fedavg", folder) for folder in own]


def test_every_method_has_the_settings_that_the_experiment_gives_it(tmp_path):
    settings = {"fedhca2": {"groups": True}, "matfl": {"clusters": 2}, "fedavg": {}, "fedper": {"final_epochs": 1}}
    experiment = small(
        {"name": "fedper", "final_epochs": 1}, methods={name: settings[name] for name in settings if name != "fedper"}
    )
    found = [run.experiment.resolved_method for run in plan_runs(experiment, list(settings), 1, tmp_path)]
    assert found[1:] == [resolve(name, values).over(3) for name, values in settings.items()]


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


@pytest.mark.slow
def test_an_interrupted_run_goes_on_and_what_is_finished_is_not_run_again(tmp_path):
    runs = plan_runs(small(rounds=2), ["fedavg"], 1, tmp_path)
    with pytest.raises(CrashError):
        list(run_all(runs, Silent(1, crash)))
    list(run_all(runs, Silent()))
    list(run_all(runs, Silent(0, crash)))
    assert RunFiles(runs[1].folder).outcome.baseline


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
    assert not RunFiles(ours.folder).outcome.baseline
    finish(local, 10.0)
    join_baselines([local, ours])
    result = json.loads((ours.folder / "result.json").read_text())
    assert result["baseline"] == json.loads((local.folder / "result.json").read_text())["clients"]
    assert (result["delta_m"], result["delta_m_by_client"]) == pytest.approx((10, 10))


def test_only_methods_with_every_seed_are_compared(tmp_path):
    runs = plan_runs(small(), ["fedavg"], 2, tmp_path)
    for run in runs[:3]:
        finish(run, 10.0)
    assert [run.name for run in complete_runs(runs)] == ["local, seed 0", "local, seed 1"]
    assert [folder.parent.name for folder in find_runs(tmp_path)] == ["local", "local", "fedavg"]


@pytest.mark.slow
def test_all_methods_begin_with_the_same_images_and_models(tmp_path):
    runs = list(quickly(list, run_all(plan_runs(small(rounds=1), MECHANISMS, 1, tmp_path), Silent())))
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
    assert {"table.md", "table.csv", "table.tex"} <= {path.name for path in tmp_path.iterdir()}
    note = (tmp_path / "table.md").read_text("utf-8").splitlines()[-1]
    assert "defaults: fedhca2: groups=True." in note
