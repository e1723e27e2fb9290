"""Data sets, classes, tasks and methods that are handed over in Python, without an import path."""

import gc
from dataclasses import replace

import pytest
import torch
from torch import nn

import fedhca2
from fedhca2 import Experiment, Method, UserError
from fedhca2.experiment.settings import GivenSettings
from fedhca2.live import hand_over
from fedhca2.methods import Mean
from fedhca2.tasks import TASKS
from own_experiments import run as run_command
from tiny_encoder import TINY

MODEL = {"encoder": {"name": TINY}, "decoder_width": 8}
CLIENTS = [{"data": "pets", "tasks": ["classification"], "copies": 2}]


def objects():
    """Objects without an import path, as in a cell of a notebook."""

    class Pets(torch.utils.data.Dataset):
        size = (32, 32)

        def __init__(self, length):
            self.length, self.labels = length, {"classification": ("cat", "dog"), "counting": None}

        def __len__(self):
            return self.length

        def __getitem__(self, index):
            image = torch.rand(3, 32, 32, generator=torch.Generator().manual_seed(index))
            return {"image": image, "classification": index % 2, "counting": float(index)}

    class Convolutions(nn.Module):
        channels = (8,)

        def __init__(self, step: int = 4):
            super().__init__()
            self.step = nn.Conv2d(3, 8, step, step)

        def forward(self, images):
            return [self.step(images)]

    class Pooled(nn.Module):
        def __init__(self, channels, width):
            super().__init__()
            self.layer = nn.Conv2d(channels[0], width, 1)

        def forward(self, maps):
            return self.layer(maps[0])

    return Pets, Convolutions, Pooled


def experiment(**changes):
    pets, convolutions, pooled = objects()
    settings = {
        "data": {"pets": (pets(6), pets(2))},
        "tasks": {"counting": replace(TASKS["regression"], title="Counting")},
        "model": {"encoder": {"kind": convolutions, "step": 8}, "decoder": pooled, "decoder_width": 8},
        "method": Method(encoder=Mean(), decoder=Mean()),
        "clients": [*CLIENTS, {"data": "pets", "tasks": ["counting"], "name": "counter"}],
        "training": {"batch_size": 2, "schedule": {"warmup_epochs": 0}},
        "rounds": 1,
    }
    return Experiment(**{**settings, **changes})


def test_the_settings_that_python_may_give_are_those_of_an_experiment():
    assert GivenSettings.__annotations__.keys() == Experiment.model_fields.keys()


@pytest.mark.slow
def test_a_run_with_live_objects_trains_is_opened_again_and_predicts(tmp_path):
    first = experiment()
    run = fedhca2.run(first, tmp_path, quiet=True)
    assert {record["task"] for record in run.scores()} == {"classification", "counting"}
    again = fedhca2.run(experiment(), tmp_path, quiet=True)  # as a cell that is run twice
    assert again.result == run.result
    assert fedhca2.resume(tmp_path, ["rounds=2"], quiet=True).result.rounds == 2
    assert set(fedhca2.Trained.open(tmp_path, "counter").predict(torch.zeros(3, 32, 32))) == {"counting"}
    path = first.data["pets"].kind
    del first, again, run
    gc.collect()
    done = run_command("resume", tmp_path, "--set", "rounds=3")  # as another process
    assert (done.exit_code, "path/to/file.py:NAME" in done.output, path in done.output) == (2, True, True)


def test_objects_are_handed_over_one_by_one_and_what_cannot_be_a_data_set_is_named():
    pets, convolutions, _ = objects()
    small = Experiment(data={"pets": (pets(4), pets(2))}, clients=CLIENTS, model=MODEL)
    assert small.replace(method=Method(encoder=Mean())).resolved_method.encoder == Mean()
    assert small.replace(model={"encoder": convolutions}).model.encoder.is_own
    assert small.replace(tasks={"tilt": TASKS["regression"]}).task_set["tilt"].metrics
    assert len(small.open("pets", "train")) == 4
    with pytest.raises(UserError, match=r"data\.pets.*expected a class or function of a data set"):
        Experiment(data={"pets": object()}, clients=CLIENTS, model=MODEL)


def test_the_same_code_has_the_same_path_and_edited_code_another():
    pets, *_ = objects()
    (same, *_), first = objects(), hand_over(pets, "data")
    assert hand_over(same, "data").path == first.path
    assert hand_over(type("Pets", (pets,), {}), "data").path != first.path
    assert hand_over((pets(3), pets(1)), "data").path != hand_over((pets(4), pets(1)), "data").path
    random = type("Random", (list,), {"__getitem__": lambda self, index: {"image": torch.rand(2)}})
    assert hand_over(random([0]), "data").path == hand_over(random([0]), "data").path
    assert hand_over(nn.Conv2d, "encoder").path == "torch.nn.modules.conv:Conv2d"


def test_a_mapping_replaces_only_what_it_names():
    small = experiment()
    changed = small.replace(rounds=5, training={"batch_size": 4}, method="fedper")
    assert (changed.rounds, changed.method_name, changed.training.batch_size) == (5, "fedper", 4)
    assert changed.training.schedule == small.training.schedule


def test_over_flower_an_object_needs_an_import_path(tmp_path):
    with pytest.raises(UserError, match=r"engine: expected import paths \(path/to/file.py:NAME"):
        fedhca2.run(experiment(), tmp_path / "run", engine="flower-local", quiet=True)
    assert not (tmp_path / "run").exists()
