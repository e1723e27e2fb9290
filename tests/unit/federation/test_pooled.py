"""The ceiling: one model for all clients, trained on each one's own labels."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from fedhca2.data.batches import Batch
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment
from fedhca2.federation.engine import BalancedSum
from fedhca2.federation.flower.fleet import FlowerEngine
from fedhca2.federation.flower.local import run_over_flower
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.run import run
from small_run import SETTINGS, CrashError, Silent, crash, models, resume_small, run_small, same_models, small

CLIENTS = [
    {"name": "road", "data": "outdoor", "tasks": ["semseg", "edge"]},
    {"name": "lane", "data": "outdoor", "tasks": ["edge", "normals"]},
    {"name": "home", "data": "indoor", "tasks": ["semseg", "edge"], "epochs": 2},
]
DATA = {**SETTINGS["data"], "indoor": {**SETTINGS["data"]["indoor"], "size": [32, 64]}}


def three(method="pooled", **changes):
    """Two clients of one data set, and one of another with other classes and sizes, which takes twice the steps."""
    return small(method, **{"clients": CLIENTS, "data": DATA, **changes})


@pytest.fixture(scope="module")
def pooled(tmp_path_factory):
    out = tmp_path_factory.mktemp("pooled") / "run"
    result = run_small(three(), out)
    return out, result


def parameters(out, client, part):
    """A client's parameters in a part, without running statistics."""
    found = models(out)[f"{client}.safetensors"].items()
    return {key: each for key, each in found if key.startswith(part) and "running" not in key and "num_" not in key}


def equal(one, other):
    return bool(one) and one.keys() == other.keys() and all(tensor.equal(other[name]) for name, tensor in one.items())


@pytest.mark.parametrize("part", ["encoder", "decoders.edge", "heads.edge"])
def test_all_clients_have_one_encoder_and_one_decoder_and_head_per_task(pooled, part):
    road, *others = (parameters(pooled[0], client, part) for client in ("road", "lane", "home"))
    assert [equal(road, other) for other in others] == [True, True]


def test_tasks_of_one_name_and_other_classes_have_their_own_decoder(pooled):
    assert not equal(*(parameters(pooled[0], client, "decoders.semseg") for client in ("road", "home")))


def test_every_client_has_scores_of_its_own_tasks(pooled):
    scores = {client: sorted(tasks) for client, tasks in pooled[1].clients.items()}
    assert scores == {client["name"]: sorted(client["tasks"]) for client in CLIENTS}


def test_the_pooled_model_takes_the_steps_of_all_clients_together_or_in_turns(pooled, tmp_path):
    in_turns = three({"name": "pooled", "local": {"kind": "pooled", "clients": 1}})
    run_small(in_turns, tmp_path / "turns")
    assert (steps(pooled[0], "/encoder."), steps(pooled[0], ".semseg.")) == ({3 * 4}, {3 * 4})
    assert (steps(tmp_path / "turns", "/encoder."), steps(tmp_path / "turns", ".semseg.")) == ({3 * 4}, {3 * 2})


@pytest.mark.parametrize("count", [1, 2, 3, 9])
def test_a_batch_in_parts_is_the_batch(count):
    images, draws = torch.arange(5.0), torch.arange(10.0).reshape(2, 5)  # draws of two layers
    parts = list(Batch(images, {"semseg": images + 1}, draws).parts(count))
    sizes = [len(part.image) for part in parts]
    assert (len(parts), max(sizes) - min(sizes) <= 1) == (min(count, 5), True)
    assert torch.cat([part.image for part in parts]).equal(images)
    assert torch.cat([part.labels["semseg"] for part in parts]).equal(images + 1)
    assert torch.cat([part.keep for part in parts], dim=1).equal(draws)


def steps(out, part):
    """How many steps the last client's model took in a part."""
    state = load_file(out / "checkpoints" / "round-000003" / "client-home.safetensors")
    return {int(count) for name, count in state.items() if "/step/" in name and part in name}


@pytest.fixture(scope="module")
def moved(tmp_path_factory):
    """How far an encoder moves in one step of plain SGD, with the gradients of clients that have no common task."""
    folder = tmp_path_factory.mktemp("moved")
    clients = [{**CLIENTS[0], "tasks": ["semseg"], "steps": 1}, {**CLIENTS[1], "tasks": ["normals"], "steps": 1}]

    def encoder(method, client, rate=0.1):
        sgd = {"batch_size": 1, "learning_rate": rate, "weight_decay": 0, "optimizer": {"kind": "sgd"}}
        training = {**sgd, "schedule": {"warmup_epochs": 0, "lag": False}}
        out = folder / f"{method if isinstance(method, str) else 'unbalanced'}-{rate}"
        if not out.exists():
            run_small(three(method, training=training, clients=clients, rounds=1), out)
        return torch.cat([each.flatten() for _, each in sorted(parameters(out, client, "encoder").items())])

    start = encoder("local", "road", rate=1e-30)  # too small to move anything

    def moved(method, client="road"):
        return encoder(method, client) - start

    return moved


def test_gradients_of_an_encoder_add_up_at_one_length(moved):
    one, other = moved("local"), moved("local", "lane")
    assert other.norm() > 2 * one.norm() > 0.001
    mean = (one.norm() + other.norm()) / 2
    expected = (one / one.norm() + other / other.norm()) * mean
    torch.testing.assert_close(moved("pooled"), expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("slopes", [(0, 2), (2, 0)])
def test_images_without_labels_add_nothing(slopes):
    parameter, total = torch.nn.Parameter(torch.ones(3)), BalancedSum()
    for slope in slopes:
        with total.adding([parameter]):
            (slope * parameter).sum().backward()
    total.finish()
    assert parameter.grad.tolist() == pytest.approx([1, 1, 1])


def test_gradients_of_an_encoder_add_up_as_they_are(moved):
    as_they_are = {"name": "pooled", "local": {"kind": "pooled", "balanced": False}}
    expected = moved("local") + moved("local", "lane")
    torch.testing.assert_close(moved(as_they_are), expected, rtol=1e-3, atol=1e-6)


def test_one_client_alone_trains_as_with_local(tmp_path):
    for method in ("local", "pooled"):
        run_small(three(method, clients=CLIENTS[2:]), tmp_path / method)
    assert same_models(tmp_path / "local", tmp_path / "pooled")


def test_a_client_that_does_not_take_part_still_has_the_common_model_after_a_resume(tmp_path):
    experiment = three(participation={"availability": {"home": 0.0}})
    run_small(experiment, tmp_path / "straight")
    with pytest.raises(CrashError):
        run_small(experiment, tmp_path / "resumed", Silent(1, crash))
    resume_small(tmp_path / "resumed")
    assert same_models(tmp_path / "straight", tmp_path / "resumed")


def test_diverging_training_is_an_error(tmp_path):
    wild = {"batch_size": 2, "learning_rate": 1e30, "schedule": {"warmup_epochs": 0, "lag": False}}
    with pytest.raises(UserError, match="learning_rate"):
        run_small(small("pooled", training=wild), tmp_path / "run")


def over_flower(experiment, out):
    run_over_flower(experiment, out, watcher=Silent(), engine="flower-local")


def at_the_server(experiment, out):
    FlowerEngine(None, NetworkSettings()).open(experiment, None)


@pytest.mark.parametrize("start", [over_flower, at_the_server])
def test_pooled_training_over_flower_is_refused(tmp_path, start):
    with pytest.raises(UserError, match=r"^method: .*in-process"):
        start(small("pooled"), tmp_path / "run")


def test_the_baseline_of_pooled_is_local(tmp_path):
    with_baseline = run_small(three(baseline=True, rounds=1), tmp_path / "pooled")
    assert with_baseline.baseline == run_small(three("local", rounds=1), tmp_path / "local").clients


def test_arrays_and_vectors_are_pooled_too(tmp_path):
    brief = ["method=pooled", "baseline=false", "rounds=1", "training.batch_size=4"]
    brief += [f"data.{name}.count=8" for name in ("press", "pump", "fan")]
    sensors = Experiment.load(Path(__file__).parents[3] / "examples" / "sensors.yaml", brief)
    assert run(sensors, tmp_path / "run", watcher=Silent()).clients.keys() == {"press", "pump", "fan"}
