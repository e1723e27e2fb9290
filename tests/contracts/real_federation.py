"""A federation of real clients that is as small as possible: a few rendered scenes and a tiny encoder."""

import json
from dataclasses import dataclass, replace
from functools import cache

import torch

from fedhca2.clients import Client, DeviceSlot
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.rounds import run_rounds
from fedhca2.federation.server import Server
from fedhca2.messages import Order, Reply
from fedhca2.params import Layout, flatten
from fedhca2.run_folder.records import Watcher
from tiny_encoder import TINY

# Two clients with the same task that are not neighbours, one on the same data set with a vector per image instead of a
# map, and a multi-task client.
MIXED = (
    ("road", "outdoor", ("semseg",)),
    ("shop", "outdoor", ("things",)),
    ("home", "indoor", ("semseg", "depth")),
    ("street", "outdoor", ("semseg",)),
)
SETTINGS = {
    "model": {"encoder": {"name": TINY}, "feature_width": 8, "decoder_width": 8},
    "training": {"batch_size": 2, "learning_rate": 1e-3, "schedule": {"warmup_epochs": 0, "lag": False}},
    "tasks": {"things": "multilabel"},
    "data": {
        "outdoor": {"kind": "scenes", "domain": "outdoor", "size": [32, 32], "train": 8, "val": 1},
        "indoor": {"kind": "scenes", "domain": "indoor", "size": [32, 32], "train": 4, "val": 1},
    },
}


@dataclass(frozen=True)
class Record:
    """One order and its reply, with the shared model's rows before it, after the rows were taken, and at the end.

    `personal` are the rows of the model that is evaluated: the same model but for Ditto.
    """

    order: Order
    reply: Reply
    before: dict
    received: dict
    after: dict
    personal: dict


def rows_of(learner):
    return {slot: flatten(tensors, Layout.of(tensors)) for slot, tensors in learner.model.slots().items()}


class RecordedFleet:
    """Carries out orders one client after another, each in two steps, and records them."""

    def __init__(self, clients):
        self.absent = {}
        self.clients: dict[str, Client] = {client.name: client for client in clients}
        self.records: dict[str, list[Record]] = {name: [] for name in self.clients}

    @property
    def profiles(self):
        return {name: client.profile for name, client in self.clients.items()}

    def perform(self, orders, watch):
        return {name: self._perform(self.clients[name], order) for name, order in orders.items()}

    def _perform(self, client, order):
        before = rows_of(client.shared)
        client.perform(Order(order.round, order.deliveries, train=False))
        received = rows_of(client.shared)
        reply = client.perform(replace(order, deliveries={}))
        record = Record(order, reply, before, received, rows_of(client.shared), rows_of(client.personal))
        self.records[client.name].append(record)
        return reply


def experiment_of(method, clients=MIXED, rounds=2):
    """An experiment with these clients: name, data set, tasks, and an encoder unless it is the tiny one."""
    entries = [
        {"name": name, "data": data, "tasks": tasks, **({"model": {"encoder": {"name": other[0]}}} if other else {})}
        for name, data, tasks, *other in clients
    ]
    return Experiment.parse({**SETTINGS, "rounds": rounds, "method": method, "clients": entries})


@cache
def data():
    return open_data(experiment_of("local"))


def clients_of(method, clients=MIXED, rounds=2, shards=None):
    experiment = experiment_of(method, clients, rounds)
    shards = shards or assign_shards(experiment, data())
    return [plan.build() for plan in plan_clients(experiment, data(), shards, DeviceSlot(torch.device("cpu")))]


def federate(method, clients=MIXED, rounds=2, shards=None):
    """Do a whole run; returns the fleet with its records."""
    fleet = RecordedFleet(clients_of(method, clients, rounds, shards))
    server = Server(experiment_of(method, clients).resolved_method, fleet.profiles.values())
    run_rounds(server, fleet, rounds, 0, Watcher())
    return fleet


@cache
def _federated(text):
    return federate(json.loads(text))


def federated(name, **settings):
    """The same for a method by name, run once for all tests that need it."""
    return _federated(json.dumps({"name": name, **settings}, sort_keys=True))
