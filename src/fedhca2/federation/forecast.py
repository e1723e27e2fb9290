"""What a run will do, before it trains anything: each client's images and parts, bytes per round, and memory."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from fedhca2.clients import Client, DeviceSlot
from fedhca2.data.dataset import input_shape
from fedhca2.experiment import Experiment, assign_shards, open_data, without_broken
from fedhca2.experiment.build import ClientPlan, plan_clients
from fedhca2.federation.in_process import choose_devices, one_thread
from fedhca2.federation.server import Deliveries, Server, check_method
from fedhca2.messages import Order, Reply
from fedhca2.models.layers import draw_keep, dropping

ROUNDS = 2  # in the first one, clients have nothing to take yet
VALUE = 4  # bytes of a float32


@dataclass(frozen=True)
class Forecast:
    """All clients, the devices, and the bytes of memory that are expected to be needed.

    Of each client, as JSON data: its images, steps in a round, the parameters of its parts, the kind of what it `sends`
    of a part (parameters, or updates), and the bytes of an ordinary round.
    """

    clients: Sequence[Mapping[str, Any]]
    devices: Sequence[str]
    memory: Mapping[str, int | None]

    def to_dict(self) -> dict[str, Any]:
        """Convert to JSON data."""
        ways = ("bytes_up", "bytes_down")
        totals = {way: sum(client[way] for client in self.clients) for way in ways}
        return {**asdict(self), "per_round": totals}


def forecast(experiment: Experiment) -> Forecast:
    """Let two clients of each kind exchange rows as in a run, with a small random change instead of training."""
    devices = choose_devices(experiment.devices)
    data = open_data(experiment)
    shards, _ = without_broken(experiment, data, assign_shards(experiment, data))
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        plans = plan_clients(experiment, data, shards, DeviceSlot(torch.device("cpu")))
        profiles = {plan.profile.client: plan.profile for plan in plans}
        check_method(experiment.resolved_method, profiles)
        server = Server(experiment.resolved_method, profiles.values())
        kinds: dict[int, list[ClientPlan]] = {}
        for plan in plans:
            kinds.setdefault(id(plan.common), []).append(plan)
        tried = {kind: [plan.build() for plan in members[:2]] for kind, members in kinds.items()}
        traffic = _exchange(server, [client for clients in tried.values() for client in clients])
    forecasts = [
        {
            "client": plan.profile.client,
            "data": plan.spec.data,
            "tasks": plan.spec.tasks,
            "train": len(plan.shard.train),
            "val": len(plan.shard.val),
            "steps": plan.steps,
            "parameters": {
                str(slot): each.numel for slot, each in plan.profile.layouts.items() if "_norms" not in slot.part
            },
            "sends": {str(part): kind for part, kind in server.uploads(plan.profile.client, ROUNDS - 1).items()},
            **traffic[tried[id(plan.common)][0].name],
        }
        for plan in plans
    ]
    counts = [(tried[kind][0], len(members)) for kind, members in kinds.items()]
    return Forecast(forecasts, [str(device) for device in devices], _memory(counts, len(devices)))


def _exchange(server: Server, clients: Sequence[Client]) -> dict[str, dict[str, int]]:
    """The bytes up and down of each client in the last of a few rounds."""
    state, traffic = server.start(), dict[str, dict[str, int]]()
    pending: Deliveries = {}
    for round in range(ROUNDS):
        replies = []
        for client in clients:
            order = Order(round, pending.get(client.name, {}), upload=server.uploads(client.name, round))
            model, exchange = client.shared.model, client.exchange
            exchange.receive(model, order)
            exchange.begin_training(model, order)
            for parameter in model.parameters():
                parameter.data.add_(torch.randn_like(parameter), alpha=1e-3)  # instead of training
            rows, agreement = exchange.outgoing(model, order, 1, lambda part: 1.0)
            losses = {} if client.privacy.noise else dict.fromkeys(model.decoders, 0.0)
            replies.append(Reply(client.name, round, rows=rows, agreement=agreement, losses=losses))
            traffic[client.name] = {"bytes_up": replies[-1].nbytes, "bytes_down": order.nbytes}
        state, pending, _ = server.step(state, replies, pending)
    return traffic


def _memory(clients: Sequence[tuple[Client, int]], devices: int) -> dict[str, int | None]:
    """Bytes of the clients' states, and of one step at a time on each device.

    `clients` has one of each kind, and how many there are of it. A state is the models with two moments and the rows of
    exchanges; a step needs gradients, and what the forward pass keeps for them.
    """
    states, steps = 0, list[int | None]()
    for client, count in clients:
        learners = dict.fromkeys((client.personal, client.shared))
        values = [sum(parameter.numel() for parameter in learner.model.parameters()) for learner in learners]
        rows = sum(row.nbytes for row in client.exchange.tensors().values())
        saved = _bytes_for_gradients(client)
        states += count * (3 * VALUE * sum(values) + rows)
        steps.append(None if saved is None else VALUE * max(values) + saved)
    computable = [step for step in steps if step is not None]
    return {"states": states, "steps": devices * max(computable) if len(computable) == len(steps) else None}


def _bytes_for_gradients(client: Client) -> int | None:
    """Bytes that a forward pass keeps, from shapes alone; None if the model cannot compute without values."""
    saved = dict[int, int]()

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved[id(tensor)] = tensor.numel() * tensor.element_size()
        return tensor

    data = client.data.train
    model = deepcopy(client.personal.model).to("meta").train()
    paths = model.encoder.drop_paths
    draws = draw_keep(paths, 1, data.batch_size, np.random.default_rng(0))[0].to("meta") if paths else None
    try:
        with dropping(paths, draws), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            model(torch.empty(data.batch_size, *input_shape(data.data), device="meta"))
    except (RuntimeError, TypeError):  # torch's, where code needs values: as a number, as a condition, in numpy
        return None
    return sum(saved.values())
