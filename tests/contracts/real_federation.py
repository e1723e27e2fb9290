"""A federation of real clients that is as small as possible: a few rendered scenes and a tiny encoder."""

import json
from dataclasses import dataclass, replace
from functools import cache

import small_run
from fedhca2.clients import Client
from fedhca2.experiment import Experiment, assign_shards
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
SCENES = {"kind": "scenes", "size": [32, 32], "val": 1}
SETTINGS = {
    "model": {"encoder": {"name": TINY}, "feature_width": 8, "decoder_width": 8},
    "training": small_run.SETTINGS["training"],
    "tasks": {"things": "multilabel"},
    "data": {name: {**SCENES, "domain": name, "train": count} for name, count in (("outdoor", 8), ("indoor", 4))},
}


@dataclass(frozen=True)
class Turn:
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
    """Carries out orders one client after another, each in two steps, and records what `look` sees of it."""

    def __init__(self, clients, look=lambda client: rows_of(client.shared)):
        self.absent, self.look = {}, look
        self.clients: dict[str, Client] = {client.name: client for client in clients}
        self.turns: dict[str, list[Turn]] = {name: [] for name in self.clients}

    @property
    def profiles(self):
        return {name: client.profile for name, client in self.clients.items()}

    def perform(self, orders, watch):
        return {name: self._perform(self.clients[name], order) for name, order in orders.items()}

    def _perform(self, client, order):
        before = self.look(client)
        client.perform(Order(order.round, order.deliveries, train=False))
        received = self.look(client)
        reply = client.perform(replace(order, deliveries={}))
        turn = Turn(order, reply, before, received, self.look(client), rows_of(client.personal))
        self.turns[client.name].append(turn)
        return reply


def experiment_of(method, clients=MIXED, rounds=2):
    """An experiment with these clients: name, data set, tasks, and an encoder unless it is the tiny one."""
    entries = [
        {"name": name, "data": data, "tasks": tasks, **({"model": {"encoder": {"name": other[0]}}} if other else {})}
        for name, data, tasks, *other in clients
    ]
    return Experiment.parse({**SETTINGS, "rounds": rounds, "method": method, "clients": entries})


def clients_of(method, clients=MIXED, rounds=2, shards=None):
    return [*small_run.clients_of(experiment_of(method, clients, rounds), shards).values()]


def shards_of(method, clients=MIXED, rounds=2):
    experiment = experiment_of(method, clients, rounds)
    return assign_shards(experiment, small_run.open_data_once(experiment))


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
