"""The engine within this process: one thread per GPU, or per core of the CPU."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar, TypeVar

import torch
from torch import Tensor

from fedhca2.clients import BatchWatch, Client, CompilingError, DeviceSlot, load_state, save_state
from fedhca2.clients.evaluation import sample_labels, sample_predictions
from fedhca2.clients.precompile import precompile
from fedhca2.config import suggest
from fedhca2.cores import usable_cores
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, OpenData, Shard, assign_shards, open_data, partition_as_data, without_broken
from fedhca2.experiment.build import build_clients, step_kind
from fedhca2.federation.engine import RunWatcher
from fedhca2.federation.limits import Reach
from fedhca2.federation.look_ahead import LookAhead
from fedhca2.federation.membership import shards_after, without_strangers
from fedhca2.federation.rounds import Outcome, Watcher
from fedhca2.federation.server import Server
from fedhca2.messages import Order, Profile, Reply
from fedhca2.run_folder.checkpoints import unusable
from fedhca2.run_folder.names import PARTITION
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress, ServerRecord
from fedhca2.run_folder.result import device_name
from fedhca2.run_folder.writer import RunFolder

T = TypeVar("T")


class InProcess:
    """Clients as objects in memory. Their results do not depend on the device slot or on how many work in parallel."""

    def __init__(self, clients: Sequence[Client], places: Sequence[DeviceSlot] = ()) -> None:
        self.clients = {client.name: client for client in clients}
        places = places or [clients[0].device_slot]
        self.home = places[0].device
        if len(places) == 1 and self.home.type == "cpu":
            places = [*places] * max(1, min(len(usable_cores()), len(clients)))
        self.free: SimpleQueue[DeviceSlot] = SimpleQueue()
        for place in places:
            self.free.put(place)
        # Small models on a CPU gain nothing from several threads in one step.
        threads = 1 if len(places) > 1 else torch.get_num_threads()
        self.pool = ThreadPoolExecutor(len(places), initializer=torch.set_num_threads, initargs=(threads,))

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """The clients that take part."""
        return {name: client.profile for name, client in self.clients.items()}

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Carry out every order."""

        def work(client: Client, place: DeviceSlot) -> Reply:
            reply = client.perform(orders[client.name], watch, place)
            return replace(reply, rows={slot: row.to(self.home) for slot, row in reply.rows.items()})

        return self.each(orders, work)

    def each(self, names: Iterable[str], work: Callable[[Client, DeviceSlot], T]) -> dict[str, T]:
        """Do some work for each of these clients, in parallel, starting with those that have the most images."""
        busiest = sorted((self.clients[name] for name in names), key=lambda client: client.load, reverse=True)
        waiting = {client.name: self.pool.submit(self._at_free_slot, client, work) for client in busiest}
        return {name: waiting[name].result() for name in names}

    def save(self, folder: Path) -> Mapping[str, str]:
        """Write every client's state and return the checksums."""
        return {name: save_state(folder / _file(name), client.state()) for name, client in self.clients.items()}

    def restore(self, folder: Path, checksums: Mapping[str, str]) -> None:
        """Restore the clients that have a state; others are new and stay unchanged."""
        for name, client in self.clients.items():
            if name in checksums:
                try:
                    client.restore(load_state(folder / _file(name), checksums[name]))
                except (ValueError, KeyError) as error:
                    raise unusable(folder, error) from None

    def _at_free_slot(self, client: Client, work: Callable[[Client, DeviceSlot], T]) -> T:
        """Work for a client at the next free device slot."""
        place = self.free.get()
        try:
            return work(client, place)
        except torch.OutOfMemoryError:
            batch = client.training.batch_size
            raise UserError(
                [
                    f"client {client.name!r}: {place.device} is out of memory. Lower training.batch_size "
                    f"(now {batch}), the size of the images or the encoder"
                ]
            ) from None
        except CompilingError as error:
            raise UserError(
                [f"training.step: could not be compiled: {error}. --set training.step=captured avoids compiling"]
            ) from error
        finally:
            self.free.put(place)


def _file(client: str) -> str:
    return f"client-{client}.safetensors"


@dataclass(frozen=True)
class InProcessEngine:
    """Opens the data sets here, and builds every client in memory."""

    file_names: ClassVar[Sequence[str]] = (PARTITION,)
    settings_stay: ClassVar[bool] = False

    def prepare(self, experiment: Experiment, out: Path, *, resumed: bool) -> "InProcessFleets":
        """Open the data and assign images; a resumed run keeps its assignment."""
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
    """Data sets, each client's images, and the skipped files."""

    data: Mapping[str, OpenData]
    shards: Mapping[str, Shard]
    skipped: Mapping[str, list[str]]
    files: Mapping[str, Any]

    def open(self, experiment: Experiment, folder: RunFolder, *, baseline: bool) -> "InProcessRun":
        """Build the clients and restore them."""
        if experiment.secure_aggregation:
            fault = "hides rows from a remote server, and there is none here"
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
        # A client's noise key only exists here, so it is saved before any noised update leaves.
        self.checkpoint_first = checkpoint is None and bool(experiment.privacy.noise)
        self.checkpoint_every = experiment.checkpoints.every

    @property
    def device(self) -> str:
        """The hardware that the clients train on."""
        return ", ".join(dict.fromkeys(map(device_name, self._devices)))

    @contextmanager
    def begin(self, watcher: RunWatcher) -> Iterator[Watcher]:
        """Introduce new clients, and compile their steps."""
        watcher.started(self.experiment, self.shards)
        known = self.folder.checkpoint.clients if self.folder.checkpoint else {}
        self.folder.events.introduced(profile for name, profile in self.profiles.items() if name not in known)
        if self.home.type == "cuda" and self._step == "compiled":
            models = {spec.name: spec.model for spec in self.experiment.specs}
            precompile(models, list(self.clients.values()), self.home)
        yield _All([self.folder.events, *self._look_ahead(watcher), watcher])

    def _look_ahead(self, watcher: RunWatcher) -> list[LookAhead]:
        """Measures who helps whom, if the experiment asks for it and clients send encoders."""
        experiment, settings = self.experiment, self.experiment.diagnostics
        if settings is None or experiment.resolved_method.encoder is None:
            return []
        look_ahead = LookAhead(self, settings, experiment.seed, self.folder.events, watcher.batch)
        look_ahead.announce(experiment.rounds)
        return [look_ahead]

    def server(self) -> Server:
        """The server for these clients."""
        experiment = self.experiment
        return Server(experiment.resolved_method, self.profiles.values(), experiment.guard, Reach.of(experiment))

    def finish(self, outcome: Outcome) -> Outcome:
        """Save every client's model, and its predictions for a few images."""
        with one_thread():
            for name, client in self.clients.items():
                self.folder.save_model(name, client.personal.model)
                self.folder.save_samples(name, self._samples[name] | sample_predictions(client, "after"))
        return outcome


@dataclass(frozen=True)
class _All:
    """Notifies several watchers."""

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
    """The devices to train on: those wanted, or every GPU, or the CPU; raises UserError if one does not exist."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    there = ["cpu", *gpus, *(["cuda"] if gpus else [])]
    lines = [f"devices: {name!r} does not exist. {suggest(name, there)}" for name in wanted if name not in there]
    if lines:
        raise UserError(lines)
    return [torch.device(name) for name in wanted or gpus or ["cpu"]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for short operations: several would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
