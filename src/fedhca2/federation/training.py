"""All rounds of one run, from its start or from its last checkpoint, to its result."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from fedhca2.clients import Workplace
from fedhca2.clients.precompile import precompile
from fedhca2.config import suggest
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, OpenData, Shard, build_clients, step_kind
from fedhca2.federation.course import Course
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.membership import without_strangers
from fedhca2.federation.moves import Reach
from fedhca2.federation.rounds import Watcher
from fedhca2.federation.samples import Arrays, sample_labels, sample_predictions
from fedhca2.federation.server import Server
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.records import Progress, ServerRecord
from fedhca2.run_folder.result import Result, Scores, device_name
from fedhca2.run_folder.writer import RunFolder


class RunWatcher(Watcher, Protocol):
    """Whoever wants to know how a run goes, from its start."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        """A run begins; its Local baseline, where it has one, is a run of its own before it."""


@dataclass(frozen=True)
class Given:
    """What a run is given: data sets, each client's images, and what had to be left out."""

    data: Mapping[str, OpenData]
    shards: Mapping[str, Shard]
    skipped: dict[str, list[str]]


@dataclass(frozen=True)
class _All:
    """Tells several watchers."""

    watchers: Sequence[Watcher]

    def batch(self, client: str, done: int, total: int, loss: Tensor) -> None:
        for watcher in self.watchers:
            watcher.batch(client, done, total, loss)

    def replied(self, order: Order, reply: Reply) -> None:
        for watcher in self.watchers:
            watcher.replied(order, reply)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        for watcher in self.watchers:
            watcher.aggregated(round, record, seconds)


def choose_devices(wanted: Sequence[str] = ()) -> list[torch.device]:
    """Where clients train: the devices that are wanted, or every GPU, or the CPU; UserError if one is not there."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    there = ["cpu", *gpus, *(["cuda"] if gpus else [])]
    lines = [f"devices: {name!r} is not there. {suggest(name, there)}" for name in wanted if name not in there]
    if lines:
        raise UserError(lines)
    return [torch.device(name) for name in wanted or gpus or ["cpu"]]


@contextmanager
def one_thread() -> Iterator[None]:
    """For short operations, whose threads would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


@dataclass(frozen=True)
class Ready:
    """A run that can go on: nothing about it has been refused, and nothing in its folder has been changed."""

    given: Given
    course: Course
    devices: Sequence[torch.device]
    fleet: InProcess
    progress: Progress | None
    samples: Mapping[str, Arrays]


def prepare(experiment: Experiment, given: Given, folder: RunFolder, run: Path) -> Ready:
    """Build the clients and put them where the run stands; `run` is what to resume if it is interrupted."""
    if experiment.secure_aggregation:
        fault = (
            "hides rows from a server elsewhere, and here there is none; it should be null, or --engine flower-local"
        )
        raise UserError([f"secure_aggregation: {fault}"])
    course = Course(experiment, folder, run)
    devices = choose_devices(experiment.devices)
    kind = step_kind(experiment, given.data, given.shards)
    places = [Workplace(device, kind) for device in devices]
    with one_thread():
        clients = build_clients(experiment, given.data, given.shards, places[0])
        samples = {client.name: sample_labels(client) | sample_predictions(client, "before") for client in clients}
    fleet, checkpoint, progress = InProcess(clients, places), folder.checkpoint, None
    if checkpoint is not None:
        fleet.restore(checkpoint.path, checkpoint.clients)
        progress = without_strangers(checkpoint.progress, list(fleet.profiles))
    return Ready(given, course, devices, fleet, progress, samples)


def train(ready: Ready, watcher: RunWatcher, baseline: Scores | None) -> Result:
    """Every round that is still to come, in a folder that has been rewound."""
    course, fleet, given = ready.course, ready.fleet, ready.given
    experiment, folder, clients = course.experiment, course.folder, list(fleet.clients.values())
    watcher.started(experiment, given.shards)
    known = folder.checkpoint.clients if folder.checkpoint else {}
    folder.events.introduced(profile for name, profile in fleet.profiles.items() if name not in known)
    if ready.devices[0].type == "cuda" and step_kind(experiment, given.data, given.shards) == "compiled":
        precompile(experiment.model, clients, ready.devices[0])
    if folder.checkpoint is None and experiment.privacy.noise:  # if it falls over in its first round, the keys are kept
        folder.commit(Progress(), fleet, course.seconds)
    server = Server(experiment.resolved_method, fleet.profiles.values(), experiment.guard, Reach.of(experiment))
    outcome = course.go(server, fleet, _All([folder.events, watcher]), ready.progress, experiment.checkpoints.every)
    with one_thread():
        for client in clients:
            folder.save_model(client.name, client.personal.model)
            folder.save_samples(client.name, ready.samples[client.name] | sample_predictions(client, "after"))
    return course.conclude(outcome, baseline, ", ".join(dict.fromkeys(map(device_name, ready.devices))), given.skipped)
