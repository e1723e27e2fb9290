"""Test images, the best model on validation images, and early stopping."""

import json

import pytest
import torch

from fedhca2.clients import ClientState
from fedhca2.clients.evaluation import BestModel
from fedhca2.deployment.trained import evaluate
from fedhca2.errors import UserError
from fedhca2.federation.rounds import has_stalled
from fedhca2.reports.comparison import gather
from fedhca2.reports.tables import result_table
from fedhca2.run_folder.reader import RunFiles
from fedhca2.tasks import TASKS
from small_run import CrashError, Silent, clients_of, crash, events, models, resume_small, run_small, small

DATA = {
    "outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 4, "val": 6, "test": 0.5},
    "indoor": {"kind": "scenes", "domain": "indoor", "size": [32, 32], "train": 2, "val": 6, "test": 0.5},
}
BEST = {"evaluate_every": 1, "select": "best", "data": DATA}


@pytest.fixture
def best(once):
    return once(small(**BEST))


@pytest.fixture
def untested(once):
    """A run without test images."""
    return once(small(rounds=1))


def partition(out, **changes):
    """The images of a client in a short run with these changes."""
    run_small(small(**{"data": DATA, "rounds": 1, "evaluate_every": 0, **changes}), out)
    return json.loads((out / "partition.json").read_text())["road"]


def test_validation_and_test_images_are_disjoint_and_the_same_for_every_seed(tmp_path):
    parts = [partition(tmp_path / f"{seed}", seed=seed) for seed in (0, 1)]
    assert len(parts[0]["val"]) == len(parts[0]["test"]) == 3
    assert not {*parts[0]["val"]} & {*parts[0]["test"]}
    assert [part["test"] for part in parts] == [parts[0]["test"]] * 2


def test_final_scores_are_on_the_test_images_and_say_so(tmp_path):
    experiment = small(data=DATA, rounds=1, evaluate_every=0)
    result = run_small(experiment, tmp_path / "run")
    assert result.split == RunFiles(tmp_path / "run").outcome.split == "test"
    assert {event["event"] for event in events(tmp_path / "run") if "metric" in event} == {"test", "loss"}
    assert "test images" in result_table(result, experiment.task_set).title
    road = clients_of(experiment)["road"]
    road.personal.model.load_state_dict(models(tmp_path / "run")["road.safetensors"])
    assert road.evaluate_on(road.data.test, road.data.test.data.labels, trivial=True) == result.clients["road"]


def test_the_model_with_the_best_scores_is_the_final_one():
    client = clients_of(small(**BEST))["home"]
    model, metrics = client.personal.model, TASKS.metrics(("depth",), client.data.val.data.labels, {})
    best = BestModel()
    for scale, rmse in ((1.0, 3.0), (2.0, 1.0), (3.0, 2.0)):
        for parameter in model.parameters():
            torch.nn.init.constant_(parameter, scale)
        best.offer(model, {"depth": {"rmse": rmse}}, metrics)
    again = BestModel.of(ClientState(best.tensors, {"client": "home", **best.values}))
    again.load_into(model)
    assert all((parameter == 2.0).all() for parameter in model.parameters())


def test_pooled_clients_choose_each_their_own(tmp_path):
    result = run_small(small("pooled", **BEST), tmp_path / "run")
    assert result.split == "test"
    assert result.clients.keys() == {"road", "shop", "home"}


def test_patience_counts_evaluations_without_a_better_mean():
    history = [{"home": {"depth": {"rmse": value}}} for value in (3.0, 2.0, 2.5, 1.0, 1.5, 1.2)]
    assert [has_stalled(history[:count], 2, TASKS) for count in range(7)] == [False] * 6 + [True]
    assert not has_stalled([*history, *history], None, TASKS)


def test_a_run_stops_early_and_is_finished(tmp_path):
    slow = {"batch_size": 2, "learning_rate": 1e-12, "schedule": {"warmup_epochs": 0, "lowest": 0.0, "lag": False}}
    experiment = small("local", rounds=9, patience=1, evaluate_every=1, data=DATA, training=slow)
    straight = run_small(experiment, tmp_path / "straight")
    assert straight.rounds < 9
    with pytest.raises(CrashError):
        run_small(experiment, tmp_path / "resumed", Silent(1, crash))
    assert resume_small(tmp_path / "resumed").rounds == straight.rounds
    assert events(tmp_path / "straight") == events(tmp_path / "resumed")


@pytest.mark.parametrize(
    ("changes", "location"),
    [
        ({"select": "best", "data": DATA, "evaluate_every": 0}, "select: .*evaluate_every"),
        ({"select": "best", "evaluate_every": 1}, "select: .*test images"),
        ({"patience": 3, "evaluate_every": 1}, "patience: .*test images"),
        ({"data": {**DATA, "indoor": {**DATA["indoor"], "test": None}}}, r"data\.indoor\.test"),
        ({**BEST, "method": "fedbabu"}, "select: .*fine-tunes"),
    ],
)
def test_choices_that_would_cheat_are_refused(changes, location):
    with pytest.raises(UserError, match=location):
        small(**changes)


def with_listed(tmp_path, *ids):
    """Data sets whose test images are listed in a file, if there are any."""
    if ids:
        (tmp_path / "test.txt").write_text("\n".join(ids) + "\n")
    return {name: {**one, "test": str(tmp_path / "test.txt")} for name, one in DATA.items()}


def test_test_images_can_be_listed(tmp_path):
    [first, second, *_] = partition(tmp_path / "run")["val"]
    data = with_listed(tmp_path, second, first) | {"indoor": DATA["indoor"]}
    part = partition(tmp_path / "listed", data=data)
    assert set(part["test"]) == {first, second}
    assert not {*part["val"]} & {*part["test"]}


@pytest.mark.parametrize(
    ("ids", "said"), [(["nobody"], r"test\.txt: expected .*, got 'nobody'"), ([], r"test\.txt: .*got no file")]
)
def test_a_listed_image_and_a_list_that_do_not_exist_are_errors(tmp_path, ids, said):
    with pytest.raises(UserError, match=said):
        run_small(small(data=with_listed(tmp_path, *ids), rounds=1), tmp_path / "run")


def test_models_are_scored_again_on_the_images_of_the_result(best, untested):
    result, again = RunFiles(best).outcome, evaluate(best, lambda name: None)
    assert (again.split, again.clients) == ("test", result.clients)
    assert evaluate(best, lambda name: None, "val").clients != result.clients
    assert RunFiles(untested).outcome.split == "val"
    with pytest.raises(UserError, match=r"--split: .*test"):
        evaluate(untested, lambda name: None, "test")


def test_a_comparison_says_that_scores_are_on_test_images(best, untested):
    assert "test images" in " ".join(gather([RunFiles(best)]).notes)
    with pytest.raises(UserError, match="expected scores on test images"):
        gather([RunFiles(best), RunFiles(untested)])
