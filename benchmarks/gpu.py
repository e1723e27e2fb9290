"""The paper's first scenario at full size on a GPU, with rendered scenes: `python benchmarks/gpu.py`.

A step is one batch of 8, compiled and captured as a CUDA graph, on a batch that is already loaded. `input` is how
much of that speed is left over a client's work in a round, in which batches come from memory through the augmentation,
and rows are received and sent. The round's time includes moving models to the GPU and back; the client's does not.
`evaluation` is one pass over 5,105 images (16 different ones), as many as PASCAL's validation split has.
"""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

import torch
from row import Row, show

from fedhca2.clients import Client, DeviceSlot, on_device
from fedhca2.clients.precompile import CACHE, precompile
from fedhca2.clients.training import LocalTerms, set_mode, take_step
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import plan_clients
from fedhca2.federation.guard import Guard
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.server import Deliveries, Server
from fedhca2.messages import Order, Reply

GPU = torch.device("cuda", 0)
STEPS = 30
VALIDATION = 5105
FIRST_STEPS = "--first-steps"
FEW = ["data.outdoor.train=80", "data.indoor.train=8", "data.outdoor.val=8", "data.indoor.val=8"]  # images


def seconds(work: Any) -> float:
    """Return the seconds that some work takes on the GPU."""
    torch.cuda.synchronize()
    began = perf_counter()
    work()
    torch.cuda.synchronize()
    return perf_counter() - began


def title(client: Client) -> str:
    """Name a client's kind for a row."""
    tasks = client.data.train.tasks
    return f"{'four tasks' if len(tasks) > 1 else tasks[0]}, {'×'.join(map(str, client.data.train.data.size))}"


def plain_row(client: Client) -> Row:
    """Measure a plain PyTorch step."""
    with on_device(client):
        learner, batch = client.personal, next(client.batches(0))
        set_mode(learner.model, frozenset())

        def steps() -> None:
            for _ in range(10):
                take_step(learner.model, learner.optimizer, batch, client.training.precision)

        steps()
        return Row(f"plain step, {title(client)}", 100 * seconds(steps), "ms")


def clients_at(slot: DeviceSlot, setting: Experiment) -> list[Client]:
    """Build the clients of an experiment."""
    data = open_data(setting)
    return [plan.build() for plan in plan_clients(setting, data, assign_shards(setting, data), slot)]


def built(settings: list[str]) -> tuple[Experiment, list[Client]]:
    """Build the clients, with images."""
    setting = Experiment.load("scenes_full", settings)
    clients = clients_at(DeviceSlot(GPU, "compiled"), setting)
    for client in clients:
        client.data.train.data.load(0, client.data.train.tasks)
    return setting, clients


def first_steps(setting: Experiment, clients: list[Client]) -> float:
    """Return the seconds until every client has taken its first step: compiling and capturing."""
    began = perf_counter()
    precompile({spec.name: spec.model for spec in setting.specs}, clients, clients[0].device_slot.device)
    for client in clients:
        assert client.device_slot.captures is not None
        with on_device(client):
            client.device_slot.captures.step(client.personal, next(client.batches(0)), LocalTerms())
    torch.cuda.synchronize()
    return perf_counter() - began


def first_steps_rows() -> Iterator[Row]:
    """Measure first steps in processes of their own: the second finds what the first compiled."""
    for name, at_most in (("from nothing", 60.0), ("from the cache", 15.0)):
        done = subprocess.run([sys.executable, __file__, FIRST_STEPS], stdout=subprocess.PIPE, text=True, check=True)
        yield Row(f"first steps of all six clients, {name}", float(done.stdout.split()[-1]), "s", at_most)


def pure_step(client: Client) -> float:
    """Return the seconds of a captured step on a batch that is already loaded."""
    assert client.device_slot.captures is not None
    with on_device(client):
        batch = next(client.batches(0))
        step = client.device_slot.captures.step(client.personal, batch, LocalTerms())

        def steps() -> None:
            for _ in range(STEPS):
                step(batch)

        steps()
        return seconds(steps) / STEPS


def rounds(setting: Experiment, fleet: InProcess, count: int) -> Iterator[tuple[Mapping[str, Reply], float, float]]:
    """Do some rounds; yields the replies of each, and the seconds of training and of the server's step."""
    server = Server(setting.resolved_method, fleet.profiles.values())
    state = server.start()
    deliveries: Deliveries = {name: {} for name in fleet.profiles}
    for number in range(count):
        torch.cuda.synchronize()
        began = perf_counter()
        uploads = setting.resolved_method.uploads(number)
        orders = {name: Order(number, rows, upload=uploads) for name, rows in deliveries.items()}
        replies = fleet.perform(orders, lambda *_: None)
        trained = perf_counter()
        state, deliveries, record = Guard(server).step(state, replies.values())
        torch.cuda.synchronize()
        assert not record.refused
        yield replies, trained - began, perf_counter() - trained


def round_rows(setting: Experiment, clients: list[Client], pure: dict[str, float]) -> Iterator[Row]:
    """Measure the second round, whose orders carry the rows that the server mixed in the first."""
    *_, (replies, trained, served) = rounds(setting, InProcess(clients), 2)
    for client in clients:
        share = pure[client.name] * client.data.steps / replies[client.name].seconds
        yield Row(f"input, {title(client)}", share, "of the step's speed", at_least=0.95)
    yield Row("server's step in a round", 1000 * served, "ms")
    yield Row("a round of scenario 1 without evaluation", trained + served, "s", at_most=19.0)
    yield Row("peak memory of the GPU", torch.cuda.max_memory_allocated() / 2**30, "GiB")


def evaluation_row(client: Client) -> Row:
    """Measure one pass over as many images as PASCAL's validation split has."""
    val = client.data.val
    few = val.indices
    client.evaluate()
    val.indices = tuple(few[i % len(few)] for i in range(VALIDATION))
    return Row(f"evaluation, {VALIDATION} images, {title(client)}", seconds(client.evaluate), "s", at_most=10.0)


def rows(quick: bool = False) -> Iterator[Row]:
    """Yield every row as it is measured; if `quick`, without the round and the evaluation."""
    with TemporaryDirectory() as folder:
        os.environ[CACHE] = folder
        yield from first_steps_rows()
        began = perf_counter()
        setting, clients = built([])
        yield Row("rendering 5,793 images, and building", perf_counter() - began, "s")
        first_steps(setting, clients)
        yield from (plain_row(client) for client in (clients[0], clients[-1]))
        pure = {client.name: pure_step(client) for client in clients}
        for client in clients:
            at_most = 20.0 if len(client.data.train.tasks) > 1 else 12.0
            yield Row(f"step, {title(client)}", 1000 * pure[client.name], "ms", at_most)
        if not quick:
            yield from round_rows(setting, clients, pure)
            yield from (evaluation_row(client) for client in clients[:4])


if __name__ == "__main__":
    if FIRST_STEPS in sys.argv:
        print(first_steps(*built(FEW)))
    else:
        show(rows())
