"""Runs that are as small as possible: three clients, a few rendered scenes, a tiny encoder."""

import json
from copy import deepcopy
from functools import cache
from unittest.mock import patch

import torch
from safetensors.torch import load_file, save_file

from fedhca2.clients import DeviceSlot
from fedhca2.experiment import Experiment, OpenData, assign_shards
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.run import resume, run
from fedhca2.run_folder.records import Watcher
from tiny_encoder import TINY

SETTINGS = {
    "name": "small",
    "rounds": 3,
    "evaluate_every": 2,
    "model": {"encoder": {"name": TINY, "drop_path": 0.2}, "decoder_width": 8},
    "training": {"batch_size": 2, "learning_rate": 1e-3, "schedule": {"warmup_epochs": 0, "lag": False}},
    "data": {
        "outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 4, "val": 1},
        "indoor": {"kind": "scenes", "domain": "indoor", "size": [32, 32], "train": 2, "val": 1},
    },
    "clients": [
        {"name": "road", "data": "outdoor", "tasks": ["semseg"]},
        {"name": "shop", "data": "outdoor", "tasks": ["sal"]},
        {"name": "home", "data": "indoor", "tasks": ["semseg", "depth"]},
    ],
}
TIMES = {"seconds"}


class CrashError(Exception):
    """Stops a run in the middle."""


class Silent(Watcher):
    """A watcher that may do something at the end of one round, and otherwise does nothing."""

    def __init__(self, at=None, do=None):
        self.at, self.do = at, do

    def aggregated(self, round, *_):
        if round == self.at:
            self.do()


def crash():
    raise CrashError


def small(method="fedhca2", **changes):
    return Experiment.parse({**deepcopy(SETTINGS), "method": method, **changes})


@cache
def opened_once(config, tasks):
    """The data set of a config, rendered once for all tests."""
    return OpenData(config.open("train", tasks), config.open("val", tasks))


def open_data_once(experiment):
    """Stands in for `open_data`."""
    return {spec.data: opened_once(experiment.data[spec.data], experiment.task_set) for spec in experiment.specs}


def quickly(work, *args, **options):
    """Run with scenes that are rendered once for all tests."""
    with patch("fedhca2.federation.engine.open_data", open_data_once):
        return work(*args, **options)


def run_small(experiment, out, watcher=None, **options):
    return quickly(run, experiment, out, watcher=watcher or Silent(), **options)


def resume_small(out, overrides=None, watcher=None):
    return quickly(resume, out, watcher=watcher or Silent(), overrides=overrides)


def untrained_run(folder, experiment, client):
    """The folder of a run with a client's untrained model."""
    (folder / "models").mkdir(parents=True)
    (folder / "config.yaml").write_text(experiment.to_yaml())
    save_file(client.personal.model.state_dict(), folder / "models" / f"{client.name}.safetensors")
    return folder


def models(out):
    return {path.name: load_file(path) for path in sorted((out / "models").iterdir())}


def events(out):
    """The logged events, without times."""
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return [{key: value for key, value in json.loads(line).items() if key not in TIMES} for line in lines]


def same_models(one, other):
    found, expected = models(one), models(other)
    return found.keys() == expected.keys() and all(
        found[name].keys() == expected[name].keys()
        and all(tensor.equal(expected[name][key]) for key, tensor in found[name].items())
        for name in expected
    )


def same_runs(one, other):
    """Whether two runs have the same models and events."""
    return same_models(one, other) and events(one) == events(other)


def tree(folder):
    """Content, mode and modification time of every file in a folder; empty if the folder does not exist."""
    return {
        path.relative_to(folder): (path.is_file() and path.read_bytes(), path.stat().st_mode, path.stat().st_mtime_ns)
        for path in sorted([folder, *folder.rglob("*")])
        if path.exists()
    }


def record_clients(clients, batches):
    """`Client.batches`, which also adds the client to a weak set: those that it still has are in memory."""

    def recorded(client, *args):
        clients.add(client)
        return batches(client, *args)

    return recorded


def clients_of(experiment, shards=None, open=open_data_once):
    """The clients of an experiment by name, on the CPU."""
    data = open(experiment)
    plans = plan_clients(experiment, data, shards or assign_shards(experiment, data), DeviceSlot(torch.device("cpu")))
    return {plan.profile.client: plan.build() for plan in plans}
