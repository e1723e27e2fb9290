"""The engine that needs nothing but this process: every GPU, or every core of the CPU."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from fedhca2.clients import DeviceSlot
from fedhca2.clients.evaluation import sample_labels, sample_predictions
from fedhca2.clients.precompile import precompile
from fedhca2.config import suggest
from fedhca2.errors import UserError
from fedhca2.experiment import (
    Experiment,
    OpenData,
    Shard,
    assign_shards,
    build_clients,
    open_data,
    partition_as_data,
    step_kind,
    without_broken,
)
from fedhca2.federation.engine import RunWatcher
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.membership import shards_after, without_strangers
from fedhca2.federation.moves import Reach
from fedhca2.federation.rounds import Outcome, Watcher
from fedhca2.federation.server import Server
from fedhca2.messages import Order, Reply
from fedhca2.run_folder.names import PARTITION
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress, ServerRecord
from fedhca2.run_folder.result import device_name
from fedhca2.run_folder.writer import RunFolder


@dataclass(frozen=True)
class InProcessEngine:
    """Opens the data sets here, and builds every client in memory."""

    file_names: ClassVar[Sequence[str]] = (PARTITION,)
    settings_stay: ClassVar[bool] = False

    def prepare(self, experiment: Experiment, out: Path, *, resumed: bool) -> "InProcessFleets":
        """Open the data, and give every client its images: those that it had, where a run is resumed."""
        choose_devices(experiment.devices)
        data = open_data(experiment)
        if resumed:
            shards = shards_after(experiment, data, RunFiles(out).partition or {})
        else:
            shards = assign_shards(experiment, data)
        shards, skipped = without_broken(experiment, data, shards)
        return InProcessFleets(data, shards, skipped, {PARTITION: partition_as_data(experiment, data, shards)})


@dataclass(frozen=True)
class InProcessFleets:
    """Data sets, each client's images, and the files that had to be left out."""

    data: Mapping[str, OpenData]
    shards: Mapping[str, Shard]
    skipped: Mapping[str, list[str]]
    files: Mapping[str, Any]

    def open(self, experiment: Experiment, folder: RunFolder, *, baseline: bool) -> "InProcessRun":
        """Build the clients, and put them where the run stands."""
        if experiment.secure_aggregation:
            fault = "hides rows from a server elsewhere, and here there is none"
            raise UserError([f"secure_aggregation: {fault}; it should be null, or --engine flower-local"])
        return InProcessRun(experiment, self, folder)


class InProcessRun(InProcess):
    """The clients of one run in this process."""

    def __init__(self, experiment: Experiment, given: InProcessFleets, folder: RunFolder) -> None:
        self.experiment, self.folder, self.shards, self.skipped = experiment, folder, given.shards, given.skipped
        self._devices = choose_devices(experiment.devices)
        self._step = step_kind(experiment, given.data, given.shards)
        places = [DeviceSlot(device, self._step) for device in self._devices]
        with one_thread():
            clients = build_clients(experiment, given.data, given.shards, places[0])
            self._samples = {one.name: sample_labels(one) | sample_predictions(one, "before") for one in clients}
        super().__init__(clients, places)
        self.progress: Progress | None = None
        checkpoint = folder.checkpoint
        if checkpoint is not None:
            self.restore(checkpoint.path, checkpoint.clients)
            self.progress = without_strangers(checkpoint.progress, list(self.clients))
        # A client's noise key exists only here: it is kept before anything that it hides can leave.
        self.checkpoint_first = checkpoint is None and bool(experiment.privacy.noise)
        self.checkpoint_every = experiment.checkpoints.every

    @property
    def device(self) -> str:
        """The hardware that the clients train on."""
        return ", ".join(dict.fromkeys(map(device_name, self._devices)))

    @contextmanager
    def begin(self, watcher: RunWatcher) -> Iterator[Watcher]:
        """Introduce the clients that are new, and compile their steps."""
        watcher.started(self.experiment, self.shards)
        known = self.folder.checkpoint.clients if self.folder.checkpoint else {}
        self.folder.events.introduced(profile for name, profile in self.profiles.items() if name not in known)
        if self.home.type == "cuda" and self._step == "compiled":
            precompile(self.experiment.model, list(self.clients.values()), self.home)
        yield _All([self.folder.events, watcher])

    def server(self) -> Server:
        """The server for these clients."""
        experiment = self.experiment
        return Server(experiment.resolved_method, self.profiles.values(), experiment.guard, Reach.of(experiment))

    def finish(self, outcome: Outcome) -> Outcome:
        """Keep every client's model, and what it predicts for a few images."""
        with one_thread():
            for name, client in self.clients.items():
                self.folder.save_model(name, client.personal.model)
                self.folder.save_samples(name, self._samples[name] | sample_predictions(client, "after"))
        return outcome


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
