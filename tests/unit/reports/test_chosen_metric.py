"""Every part of a run uses the metric that the config selects."""

import shutil

import pytest

from command import as_json
from fedhca2.errors import UserError
from fedhca2.metrics import relative_gain
from fedhca2.reports.figures.curves import metric_curves
from fedhca2.reports.page.tables import result_table
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.result import headline
from fedhca2.tasks import TASKS
from small_run import run_small, small

pytestmark = pytest.mark.slow
CHOSEN = {"sal": "miou_of_images"}
CLIENTS = [{"name": "shop", "data": "outdoor", "tasks": ["sal"]}]


def experiment(**changes):
    return small("fedper", clients=CLIENTS, rounds=2, evaluate_every=1, **changes)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("chosen") / "run"
    run_small(experiment(metrics=CHOSEN, baseline=True), out)
    return RunFiles.open(out)


def test_delta_m_table_and_curve_use_the_chosen_metric(run):
    ours, alone = (
        headline(TASKS["sal"], scores["shop"]["sal"]) for scores in (run.result.clients, run.result.baseline)
    )
    assert ours.metric == "miou_of_images"
    assert run.result.delta_m == pytest.approx(relative_gain(ours.value, alone.value, True))
    assert "mIoU of images ↑" in [cell.text for row in result_table(run).rows for cell in row]
    (figure,) = metric_curves(run)
    assert figure.note.startswith("mIoU of images on each client's validation images.")


def test_evaluating_again_gives_the_same_scores(run, tmp_path):
    shutil.copytree(run.path, tmp_path / "run")
    assert as_json("evaluate", tmp_path / "run")["clients"] == run.result.clients


def test_a_baseline_with_another_metric_is_refused(run, tmp_path):
    with pytest.raises(UserError, match="got different metrics"):
        run_small(experiment(), tmp_path / "run", baseline=run.path)
