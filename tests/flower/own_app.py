"""A Flower user's own clients, with a model and a loop of their own, and a grid that Flower's strategies can drive."""

import torch
from flwr.app import Context
from flwr.clientapp import ClientApp
from in_process_grid import InProcessGrid
from torch import nn

from array_client import ArrayClient
from fedhca2.federation.server import Server
from fedhca2.flower import FlowerClient
from fedhca2.flower.client import NamedParts
from fedhca2.messages import Profile
from fedhca2.params import assign, flatten, layouts
from fedhca2.seeds import derive

TASKS = {"north": ("depth", "edge"), "south": ("depth",), "west": ("edge",)}
STEPS = 3


class OwnModel(nn.Module):
    """A body that all clients have, and a tower and an output for each task."""

    def __init__(self, client, width=4):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(0)
            self.body = nn.Sequential(nn.Linear(3, width), nn.BatchNorm1d(width))
            torch.default_generator.manual_seed(derive(0, client))
            self.towers = nn.ModuleDict({task: nn.Sequential(nn.Linear(width, width)) for task in TASKS[client]})
            self.outputs = nn.ModuleDict({task: nn.Linear(width, 1) for task in TASKS[client]})

    def forward(self, x):
        features = self.body(x).relu()
        return {task: self.outputs[task](self.towers[task](features).relu()) for task in self.towers}


def parts(client):
    found = {"encoder": "body"}
    for task in TASKS[client]:
        found |= {f"decoder.{task}": f"towers.{task}", f"head.{task}": f"outputs.{task}"}
    return found


def losses_of(model, client, round):
    """The losses on the round's batch."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(derive(round, client, "x")))
    return {task: (out - x.sum(dim=1, keepdim=True).sin()).square().mean() for task, out in model(x).items()}


def fit(model, client, round, pull=lambda: 0.0):
    """Some steps of plain SGD."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(STEPS):
        losses = losses_of(model.train(), client, round)
        optimizer.zero_grad()
        (sum(losses.values()) + pull()).backward()
        optimizer.step()
    return {task: loss.item() for task, loss in losses.items()}


class Alone:
    """The same federation without Flower and without `FlowerClient`: the server, and clients that are rows."""

    def __init__(self, models, parts, train, method):
        self.models, self.train = models, train
        self.slotted = {name: NamedParts(model, parts(name)) for name, model in models.items()}
        profiles = {name: Profile(name, "data", own.tasks, 8, layouts(own)) for name, own in self.slotted.items()}
        self.clients = {name: ArrayClient(profile, self.rows(name, profile)) for name, profile in profiles.items()}
        self.server = Server(method, profiles.values())
        self.state, self.sent = self.server.start(), {}

    def rows(self, name, profile):
        return {slot: flatten(tensors, profile.layouts[slot]) for slot, tensors in self.slotted[name].slots().items()}

    def run(self, rounds):
        for round in range(rounds):
            replies = [self.reply(name, round) for name in self.clients]
            self.state, self.sent, _ = self.server.step(self.state, replies, self.sent)
            for name, client in self.clients.items():
                client.receive(self.sent[name])
                for slot, tensors in self.slotted[name].slots().items():
                    assign(tensors, client.rows[slot], client.profile.layouts[slot])
        return self

    def reply(self, name, round):
        client = self.clients[name]
        self.train(self.models[name], name, round)
        after = self.rows(name, client.profile)
        deltas = {slot: row - client.rows[slot] for slot, row in after.items()}
        return client.train(round, deltas, self.server.uploads(name, round))


def make_app(name, folder, models, train=fit, width=4):
    """A plain ClientApp that builds its model anew for every message, as a SuperNode's process does."""
    app = ClientApp()

    def client():
        models[name] = OwnModel(name, width)
        return FlowerClient(name, models[name], parts(name), samples=8, folder=folder)

    @app.query()
    def query(message, context: Context):
        return client().introduce(message)

    @app.train()
    def training(message, context: Context):
        own = client()
        return own.train(message, lambda round: train(models[name], name, round.number, round.pull))

    @app.evaluate()
    def evaluation(message, context: Context):
        return client().evaluate(message, lambda: scores(models[name], name))

    return app


@torch.no_grad()
def scores(model, client):
    return {task: loss.item() for task, loss in losses_of(model.eval(), client, 0).items()}


class StrategyGrid(InProcessGrid):
    """Also waits for answers, as strategies want it."""

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages(self.push_messages(messages))


def make_grid(folder, clients=TASKS, **options):
    """A grid of these clients, and their models as they are after their last message."""
    models = {}
    return StrategyGrid({name: make_app(name, folder, models, **options) for name in clients}), models
