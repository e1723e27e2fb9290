"""Regression targets are standardised by a client's own training labels, and answers stay in their unit."""

import numpy as np
import pytest
import torch

from fedhca2 import Experiment
from fedhca2.clients.training import loss_of
from fedhca2.deployment import Trained
from fedhca2.models.multitask import ScaledHead
from fedhca2.tasks import TASKS
from small_run import SETTINGS, Silent, clients_of, run_small

ONE = [{"data": "photos", "tasks": ["year"]}]


class Years:
    """Images whose brightness says the year in which they were taken."""

    size, labels = (32, 32), {"year": None}

    def __init__(self, split):
        self.bright = np.linspace(0, 255, 16 if split == "train" else 6)

    def __len__(self):
        return len(self.bright)

    def __getitem__(self, index):
        return {"image": np.full((32, 32, 3), self.bright[index], np.uint8), "year": 1950 + self.bright[index] / 5}


class Tracks(Years):
    """The same as arrays of four numbers."""

    shape = (4,)

    def __getitem__(self, index):
        return {"input": [self.bright[index] / 128 - 1, 1, 0, 0], "year": 1950 + self.bright[index] / 5}


def dated(kind="Years", **changes):
    """Two clients that guess years."""
    data = {"photos": {"kind": f"{__name__}:{kind}"}}
    tasks = {"year": {"kind": "regression", "unit": "years"}}
    clients = [ONE[0] | {"copies": 2}]
    plain = {key: SETTINGS[key] for key in ("name", "model", "training")}
    if kind == "Tracks":
        plain["model"] = {"encoder": {"kind": "mlp", "widths": [16, 8]}}
    return Experiment.parse(
        {**plain, "method": "fedavg", "rounds": 6, "data": data, "tasks": tasks, "clients": clients, **changes}
    )


@pytest.mark.parametrize("kind", ["Years", "Tracks"])
def test_a_client_knows_the_mean_and_deviation_of_its_own_training_labels(kind):
    client = clients_of(dated(kind))["photos-1"]
    sent = [name for tensors in client.personal.model.slots().values() for name in tensors]
    assert not [name for name in sent if name.endswith(("mean", "deviation")) and "running" not in name]
    head = client.personal.model.heads["year"]
    labels = torch.cat([client.data.train.data.load(index, ("year",))["year"] for index in client.data.train.indices])
    assert head.mean.item() == pytest.approx(labels.mean().item())
    assert head.deviation.item() == pytest.approx(labels.std(correction=0).item())


def test_its_loss_is_of_standardised_values_and_older_models_have_no_scale():
    head = ScaledHead(4, 1)
    head.load_state_dict(
        {name: value for name, value in head.state_dict().items() if name not in ("mean", "deviation")}
    )
    assert (head.mean.tolist(), head.deviation.tolist()) == ([0], [1])
    head.mean.fill_(1975.0)
    head.deviation.fill_(10.0)
    standard = TASKS["regression"].loss(torch.tensor([[1.0]]), torch.tensor([[-2.0]]))
    assert loss_of(TASKS["regression"], head, torch.tensor([[1985.0]]), torch.tensor([[1955.0]])) == standard


def test_a_rare_label_of_arrays_counts():
    class Rare(Tracks):
        def __init__(self, split):
            self.bright = np.full(4_000, np.nan)
            self.bright[[7, 1_001]] = 0, 255

        def __getitem__(self, index):
            return {"input": [1, 1, 1, 1], "year": super().__getitem__(index)["year"]}

    heads = clients_of(dated("Tracks", data={"photos": {"kind": Rare}}, clients=ONE))["photos"].personal.model.heads
    assert heads["year"].mean.item() == pytest.approx(1975.5)


@pytest.mark.parametrize("kind", ["Years", "Tracks"])
def test_large_numbers_are_learned_scored_and_answered_in_their_unit(tmp_path, kind):
    result = run_small(dated(kind), tmp_path / "run", Silent())
    scores = result.clients["photos-1"]["year"]
    assert scores["rmse"] < 1.5 * scores["trivial"] < 50  # years; without standardising it is about 1,970
    trained = Trained.open(tmp_path / "run", "photos-1", allow_code=[__name__])
    example = np.full((32, 32, 3), 128, np.uint8) if kind == "Years" else np.array([0, 1, 0, 0], np.float32)
    assert 1900 < trained.predict(example)["year"].item() < 2050
