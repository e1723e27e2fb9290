"""A federation that trains in a second: two single-task clients and one with two tasks."""

from functools import partial

from fedhca2.experiment import Experiment, open_data
from fedhca2.methods import METHODS, CommonUpdate, ServerAdam, SignAgreement, TrimmedMean
from small_run import clients_of
from tiny_encoder import TINY

SMALL = {
    "name": "small",
    "rounds": 2,
    "model": {"encoder": {"name": TINY}},
    "training": {"batch_size": 2, "learning_rate": 1e-3, "schedule": {"warmup_epochs": 0, "lag": False}},
    "data": {
        "outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 12, "val": 4},
        "indoor": {"kind": "scenes", "domain": "indoor", "size": [32, 32], "train": 6, "val": 4},
    },
    "clients": [
        {"data": "outdoor", "split": ["semseg", "normals"]},
        {"name": "home", "data": "indoor", "tasks": ["semseg", "depth"]},
    ],
}

# Settings with which a built-in experiment on rendered scenes takes seconds.
BRIEF = ["rounds=1", "training.batch_size=2", "data.outdoor.train=24", "data.indoor.train=12"]
BRIEF += ["data.outdoor.val=2", "data.indoor.val=2"]

ONE_UPDATE = CommonUpdate | TrimmedMean | SignAgreement | ServerAdam
COMMON = {name: method.encoder for name, method in METHODS.items() if isinstance(method.encoder, ONE_UPDATE)}
# Of the methods that send everybody one update, and differ in a formula alone, two: the others are tested on arrays.
CHOSEN = ("upgrad", "trimmed_mean", "fedadam")
MECHANISMS = [name for name in METHODS if name not in COMMON or COMMON[name].learns or name in CHOSEN]
IN_ONE_PLACE = {name for name, method in METHODS.items() if method.local.in_one_place}


def unifying(every: int) -> dict[str, dict[str, object]]:
    """Settings that share decoders and heads among clients with the same data set and task, as FedSTA's authors do."""
    return {part: {"kind": "group_mean", "every": every} for part in ("decoder", "head")}


def small(**changes: object) -> Experiment:
    """The experiment with other settings."""
    return Experiment.parse({**SMALL, **changes})


clients = partial(clients_of, open=open_data)  # of an experiment, by name, with data sets of their own
