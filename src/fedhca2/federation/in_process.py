"""The engine within this process: a thread for each device slot of a GPU, or for each core of the CPU."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch

from fedhca2.clients import BatchWatch, Client, CompilingError, DeviceSlot, Stopped, Training
from fedhca2.clients.evaluation import Arrays, sample_labels, sample_predictions
from fedhca2.clients.gpu.device import MAX_SLOTS, worthwhile_slots
from fedhca2.clients.gpu.precompile import precompile
from fedhca2.config import suggest
from fedhca2.cores import host_free, usable_cores
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, OpenData, Shard, assign_shards, open_data, partition_as_data, without_broken
from fedhca2.experiment.build import plan_clients, step_kind
from fedhca2.experiment.clients import client_kind
from fedhca2.federation.limits import Reach
from fedhca2.federation.look_ahead import LookAhead
from fedhca2.federation.membership import shards_after, without_strangers
from fedhca2.federation.rounds import Outcome
from fedhca2.federation.server import Server
from fedhca2.federation.shelf import Built, Shelf, Turns
from fedhca2.imports import is_raised_in, told
from fedhca2.messages import Order, Profile, Reply
from fedhca2.run_folder.checkpoints import unusable
from fedhca2.run_folder.names import PARTITION
from fedhca2.run_folder.reader import RunFiles
from fedhca2.run_folder.records import Progress, Watcher, Watchers
from fedhca2.run_folder.result import device_name
from fedhca2.run_folder.writer import RunFolder

T = TypeVar("T")
GB = 1e9
STATE_BYTES = 8 * 4  # of a client's state for each value that it shares: the value, its moments, and rows
KEPT_SHARE = 1 / 8  # of a GPU's memory, for clients that stay on it between rounds
SAMPLED = 24  # clients whose predictions a run keeps


class InProcess:
    """Clients on a shelf. Their results do not depend on the device slot or on how many work in parallel."""

    def __init__(self, clients: Shelf | Sequence[Client], places: Sequence[DeviceSlot] = ()) -> None:
        """`places` are by default that of the first client."""
        if not isinstance(clients, Shelf):
            places = places or [clients[0].device_slot]
            clients = Shelf([Built(client) for client in clients])
        self.shelf, self.own_code = clients, list[str]()
        self.profiles: Mapping[str, Profile] = {name: plan.profile for name, plan in self.shelf.plans.items()}
        self.kinds = {name: client_kind(profile.dataset, profile.tasks) for name, profile in self.profiles.items()}
        self.home = places[0].device
        if len(places) == 1 and self.home.type == "cpu":
            places = [*places] * max(1, min(len(usable_cores()), len(self.profiles)))
        self._work_at(places)

    def _work_at(self, places: Sequence[DeviceSlot]) -> None:
        """Let a thread for each of these device slots do the work."""
        self.places = places
        # Small models on a CPU gain nothing from several threads in one step.
        threads = 1 if len(places) > 1 else torch.get_num_threads()
        self.pool = ThreadPoolExecutor(len(places), initializer=torch.set_num_threads, initargs=(threads,))

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Carry out every order. After its last one, a client's state matters no more, since `keep` has the model."""

        def work(client: Client, place: DeviceSlot) -> Reply:
            order = orders[client.name]
            reply = client.perform(order, watch, place)
            if order.finish:
                self.keep(client, place)
            return replace(reply, rows={slot: row.to(self.home) for slot, row in reply.rows.items()})

        return self.each(orders, work, changed=not all(order.finish for order in orders.values()))

    def keep(self, client: Client, place: DeviceSlot) -> None:
        """Save the final model of a client, if somebody wants it."""

    def each(
        self, names: Collection[str], work: Callable[[Client, DeviceSlot], T], *, changed: bool = True
    ) -> dict[str, T]:
        """Do some work for each of these clients, in parallel, starting with those that have the most images.

        `changed` says whether it changes their states. If one of them fails, or this thread is interrupted, the others
        stop after their current batch, before the error is raised.
        """
        self.shelf.prepare(names)
        turns = Turns(sorted(names, key=lambda name: self.shelf.plans[name].load, reverse=True), self.kinds)
        done: dict[str, T] = {}

        def serve(place: DeviceSlot) -> None:
            try:
                while (name := turns.next(place, self.places)) is not None:
                    with (
                        self.shelf.taken(name, changed=changed) as client,
                        self._explained(name, client.training, place),
                    ):
                        done[name] = work(client, place)
            except Stopped:
                return  # another client's error is the one to raise

        working: list[Future[None]] = []
        try:
            working.extend(self.pool.submit(serve, place) for place in self.places)
            wait(working, return_when=FIRST_EXCEPTION)
        finally:
            turns.end()
            self._stop(working)
        for served in working:
            served.result()
        return {name: done[name] for name in names}

    @contextmanager
    def _explained(self, client: str, training: Training, place: DeviceSlot) -> Iterator[None]:
        """Say in one line what a user can do about a device, a compiler, or code of their own that fails."""
        try:
            yield
        except torch.OutOfMemoryError:
            hint = f"Lower training.batch_size (now {training.batch_size}), the size of the images or the encoder"
            raise UserError([f"client {client!r}: {place.device} is out of memory. {hint}"]) from None
        except CompilingError as error:
            hint = "--set training.step=captured avoids compiling"
            raise UserError([f"training.step: could not be compiled: {error}. {hint}"]) from error
        except Exception as error:  # a user's own code raises anything
            if not is_raised_in(error, self.own_code):
                raise
            raise UserError([f"client {client!r}: {told(error)}"]) from error

    def _stop(self, working: Collection[Future[None]]) -> None:
        """Let work end with its current batch, and wait for it."""
        for place in self.places:
            place.stop.set()
        wait(working)
        for place in self.places:
            place.stop.clear()

    def close(self) -> None:
        """End the threads, and let go of the clients and of what they hold on devices."""
        for place in self.places:
            place.stop.set()
        self.pool.shutdown(cancel_futures=True)
        self.shelf.close()
        for place in self.places:
            place.release()

    def save(self, folder: Path) -> Mapping[str, str]:
        """Write every client's state and return the checksums."""
        return self.shelf.save(folder, self.pool.map)


@dataclass(frozen=True)
class InProcessEngine:
    """Opens the data sets here."""

    file_names: ClassVar[Sequence[str]] = (PARTITION,)
    settings_stay: ClassVar[bool] = False

    def prepare(self, experiment: Experiment, out: Path, *, resumed: bool) -> "InProcessFleets":
        """Open the data and assign images; a resumed run keeps its assignment."""
        check_in_process(experiment)
        data = open_data(experiment)
        shards = shards_after(experiment, data, RunFiles(out)) if resumed else assign_shards(experiment, data)
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
        """Plan the clients, and check their saved states."""
        return InProcessRun(experiment, self, folder)


class InProcessRun(InProcess):
    """The clients of one run in this process."""

    stops_at_once = False

    def __init__(self, experiment: Experiment, given: InProcessFleets, folder: RunFolder) -> None:
        self.experiment, self.folder, self.shards, self.skipped = experiment, folder, given.shards, given.skipped
        self._devices = choose_devices(experiment.devices)
        self._step = step_kind(experiment, given.data, given.shards)
        places = [DeviceSlot(device, self._step) for device in self._devices]
        with one_thread():
            plans = plan_clients(experiment, given.data, given.shards, places[0])
        memory = experiment.checkpoints.memory
        room = host_free() / 4 if memory is None else memory * GB
        super().__init__(Shelf(plans, folder.states, room), places)
        self.own_code = experiment.own_code
        for place in places:
            place.keeps = self._have_room(place.device)
        self._predictions: dict[str, Arrays] = {name: {} for name in _spread(self.profiles.values(), SAMPLED)}
        self.progress: Progress | None = None
        checkpoint = folder.checkpoint
        if checkpoint is not None:
            try:
                self.shelf.restore(checkpoint.path, checkpoint.clients)
            except (ValueError, KeyError) as error:
                raise unusable(checkpoint.path, error) from None
            self.progress = without_strangers(checkpoint.progress, list(self.profiles))
        self.server().check_method()
        # A client's noise key only exists here, so it is saved before any noised update leaves.
        self.checkpoint_first = checkpoint is None and bool(experiment.privacy.noise)
        self.checkpoint_every = experiment.checkpoints.every

    @property
    def device(self) -> str:
        """The hardware that the clients train on."""
        return ", ".join(dict.fromkeys(map(device_name, self._devices)))

    @contextmanager
    def begin(self, watcher: Watcher) -> Iterator[Watcher]:
        """Introduce new clients, and compile their steps; at the end, let go of all that the run used."""
        try:
            self.shelf.open()
            self._start(watcher)
            yield Watchers([self.folder.events, *self._look_ahead(watcher), watcher])
        finally:
            self.close()

    def _start(self, watcher: Watcher) -> None:
        if self.checkpoint_first:
            self.each(list(self.profiles), lambda client, place: None)
        watcher.started(self.experiment, self.shards)
        known = self.folder.checkpoint.clients if self.folder.checkpoint else {}
        self.folder.events.introduced(profile for name, profile in self.profiles.items() if name not in known)
        if self.home.type == "cuda" and self._step == "compiled":
            models = {spec.name: spec.model for spec in self.experiment.specs}
            kinds = {spec.kind: spec.name for spec in self.experiment.specs}
            precompile(models, [self.shelf.plans[name].build() for name in kinds.values()], self.home)
        if self.home.type == "cuda" and self._step == "captured" and not self.experiment.devices:
            slots = self._slots()
            self.pool.shutdown()
            self._work_at(slots)

    def _have_room(self, device: torch.device) -> bool:
        """Whether the states of all clients take little of a GPU's memory."""
        if device.type == "cpu":
            return False
        values = sum(layout.numel for profile in self.profiles.values() for layout in profile.layouts.values())
        return values * STATE_BYTES <= torch.cuda.get_device_properties(device).total_memory * KEPT_SHARE

    def _slot(self, device: torch.device) -> DeviceSlot:
        return DeviceSlot(device, self._step, keeps=self._have_room(device))

    def _slots(self) -> list[DeviceSlot]:
        """As many device slots on every GPU as its first one gains from."""
        one_of_each = _spread(self.profiles.values(), MAX_SLOTS)
        order = Order(0, upload=self.experiment.resolved_method.uploads(0))
        trials = [self.shelf.trial(name, order) for name in one_of_each]
        with self._explained(one_of_each[0], self.experiment.training, self.places[0]):
            slots = worthwhile_slots(self.places[0], trials, lambda: self._slot(self.home))
        for slot, name in zip(slots, one_of_each, strict=False):
            slot.kinds.add(self.kinds[name])
        others = [place for place in self.places if place.device != self.home]
        return [*slots, *(self._slot(place.device) for _ in slots for place in others)]

    def keep(self, client: Client, place: DeviceSlot) -> None:
        """Save a client's final model."""
        self.folder.save_model(client.name, client.personal.model)
        if client.name in self._predictions:
            self._predictions[client.name] = sample_predictions(client, "after", place)

    def _look_ahead(self, watcher: Watcher) -> list[LookAhead]:
        """Measures who helps whom, if the experiment asks for it and clients send encoders."""
        experiment, settings = self.experiment, self.experiment.diagnostics
        if settings is None or experiment.resolved_method.encoder is None:
            return []
        look_ahead = LookAhead(self, settings, experiment.seed, self.folder.events, watcher.batch)
        look_ahead.announce(experiment.rounds)
        return [look_ahead]

    def server(self) -> Server:
        """The server for these clients, whose images are counted here, so that nobody is bounded by the others'."""
        experiment, profiles = self.experiment, self.profiles.values()
        reach = replace(Reach.of(experiment), images={each.client: each.samples for each in profiles})
        return Server(experiment.resolved_method, profiles, experiment.guard, reach, tasks=experiment.task_set)

    def finish(self, outcome: Outcome) -> Outcome:
        """Save the predictions of some clients for a few images, before and after training."""
        with one_thread():
            for name, after in self._predictions.items():
                first = self.shelf.plans[name].build()
                self.folder.save_samples(name, sample_labels(first) | sample_predictions(first, "before") | after)
        return outcome


def _spread(profiles: Iterable[Profile], count: int) -> list[str]:
    """At most this many clients, of all kinds alike: the first of each, then the second, and so on."""
    kinds: dict[str, list[str]] = {}
    for profile in profiles:
        kinds.setdefault(client_kind(profile.dataset, profile.tasks), []).append(profile.client)
    turns = zip_longest(*kinds.values())
    return [name for turn in turns for name in turn if name is not None][:count]


def check_in_process(experiment: Experiment) -> None:
    """Raise UserError if an experiment cannot run in this process."""
    choose_devices(experiment.devices)
    if experiment.secure_aggregation:
        fault = "hides rows from a remote server, and there is none here"
        raise UserError([f"secure_aggregation: {fault}; it should be null, or --engine flower-local"])


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
