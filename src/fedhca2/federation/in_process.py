"""Clients at work in this process: a thread for each device slot of a GPU, or for each core of the CPU.

A store keeps the clients that worked last in memory, and the others' states in files.
"""

import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from math import inf
from pathlib import Path
from threading import Condition, Lock
from typing import Any, TypeVar

import torch

from fedhca2.aggregation.rows import return_freed_memory
from fedhca2.clients import BatchWatch, Client, CompilingError, DeviceSlot, Stopped, Training, load_state, save_state
from fedhca2.config import suggest
from fedhca2.cores import usable_cores
from fedhca2.errors import Fault, UserError
from fedhca2.experiment.build import ClientPlan
from fedhca2.experiment.clients import client_kind
from fedhca2.imports import is_raised_in, one_line
from fedhca2.messages import Order, Profile, Reply
from fedhca2.whole_files import link_whole, private_folder, sync_file

T = TypeVar("T")


class InProcess:
    """Clients from a store. Their results do not depend on the device slot or on how many work in parallel."""

    summer = None
    absent: Mapping[str, str] = {}

    def __init__(
        self,
        clients: "ClientStore | Sequence[Client]",
        slots: Sequence[DeviceSlot] = (),
        *,
        finished: Callable[[Client], None] = lambda client: None,
    ) -> None:
        """:param slots: where clients work; by default the slot of the first client.
        :param finished: gets each client at the end of its last order; after that, its state is not saved.
        """
        if not isinstance(clients, ClientStore):
            slots = slots or [clients[0].device_slot]
            clients = ClientStore(clients)
        self.store, self.own_code, self._finished = clients, list[str](), finished
        self.profiles: Mapping[str, Profile] = {name: each.profile for name, each in self.store.clients.items()}
        self.expected = self.profiles  # from the start
        self.images: Mapping[str, int] = {name: profile.samples for name, profile in self.profiles.items()}
        self.kinds = {name: client_kind(profile.dataset, profile.tasks) for name, profile in self.profiles.items()}
        self.home = slots[0].device
        if len(slots) == 1 and self.home.type == "cpu":
            slots = [*slots] * max(1, min(len(usable_cores()), len(self.profiles)))
        self._work_at(slots)

    def _work_at(self, slots: Sequence[DeviceSlot]) -> None:
        """Let a thread for each of these device slots do the work."""
        self.slots = slots
        # Small models on a CPU gain nothing from several threads in one step.
        threads = 1 if len(slots) > 1 else torch.get_num_threads()
        self.pool = ThreadPoolExecutor(len(slots), initializer=torch.set_num_threads, initargs=(threads,))

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Carry out every order; see `each` about errors."""
        changed = not all(order.finish for order in orders.values())
        replies: dict[str, Reply] = {}
        queue = self._queue(orders)

        def serve(slot: DeviceSlot) -> None:
            while not slot.stop.is_set() and (name := queue.next(slot, self.slots)) is not None:
                with self._borrow(name, slot, changed) as client:
                    reply = client.perform(orders[name], watch)
                    if orders[name].finish:
                        self._finished(client)
                    replies[name] = replace(reply, rows={key: row.to(self.home) for key, row in reply.rows.items()})

        with self._working() as work:
            work.extend(self.pool.submit(serve, slot) for slot in self.slots)
        return {name: replies[name] for name in orders}

    def each(self, names: Collection[str], work: Callable[[Client], T], *, changed: bool = True) -> dict[str, T]:
        """Do some work for each of these clients, in parallel, starting with those that have the most images.

        `changed` says whether it changes their states. If one of them fails, or this thread is interrupted, the others
        stop after their current batch, before the error is raised.
        """
        done: dict[str, T] = {}
        queue = self._queue(names)

        def serve(slot: DeviceSlot) -> None:
            while not slot.stop.is_set() and (name := queue.next(slot, self.slots)) is not None:
                with self._borrow(name, slot, changed) as client:
                    done[name] = work(client)

        with self._working() as working:
            working.extend(self.pool.submit(serve, slot) for slot in self.slots)
        return {name: done[name] for name in names}

    def _queue(self, names: Collection[str]) -> "ClientQueue":
        self.store.prepare(names)
        steps = {name: self.store.clients[name].steps for name in names}
        loads = {name: steps[name] * (1 + len(self.profiles[name].tasks)) for name in names}  # encoder and decoders
        return ClientQueue(sorted(names, key=loads.__getitem__, reverse=True), self.kinds)

    @contextmanager
    def _working(self) -> Iterator[list[Future[Any]]]:
        """Wait for the work that is added to this list; if some of it fails, let the rest end, and raise the error."""
        working: list[Future[Any]] = []
        try:
            yield working
            wait(working, return_when=FIRST_EXCEPTION)
        finally:
            for slot in self.slots:
                slot.stop.set()  # after the current batch
            wait(working)
            for slot in self.slots:
                slot.stop.clear()
        for served in working:
            served.result()

    @contextmanager
    def _borrow(self, name: str, slot: DeviceSlot, changed: bool) -> Iterator[Client]:
        """A client to work with; errors that a user can do something about say so in one line."""
        stopped = suppress(Stopped)  # another client's error is the one to raise
        with self.store.borrow(name, changed=changed) as client, self._explain(name, client.training, slot), stopped:
            client.device_slot = slot
            yield client

    @contextmanager
    def _explain(self, who: str, training: Training, slot: DeviceSlot) -> Iterator[None]:
        """Say in one line what a user can do about a device, a compiler, or code of their own that fails."""
        where = f"client {who!r}" if who in self.profiles else who
        try:
            yield
        except torch.OutOfMemoryError:
            hint = f"Lower training.batch_size (now {training.batch_size}), the size of the images or the encoder"
            raise UserError(where, f"{slot.device} is out of memory. {hint}") from None
        except CompilingError as error:
            hint = "--set training.step=captured avoids compiling"
            raise UserError("training.step", f"could not be compiled: {error}. {hint}") from error
        except Exception as error:  # a user's own code raises anything
            if not is_raised_in(error, self.own_code):
                raise
            raise UserError(where, one_line(error)) from error

    def traffic(self, order: Order, reply: Reply) -> tuple[int, int]:
        """The bytes up and down that a network would carry."""
        return reply.nbytes, order.nbytes

    def save(self, folder: Path) -> Mapping[str, str]:
        """Write every client's state and return the checksums."""
        return self.store.save(folder, self.pool.map)

    def close(self) -> None:
        """End the threads, and let go of the clients and of what they hold on devices."""
        for slot in self.slots:
            slot.stop.set()
        self.pool.shutdown(cancel_futures=True)
        self.store.close()
        for slot in self.slots:
            slot.release()


def choose_devices(names: Sequence[str] = ()) -> list[torch.device]:
    """The devices to train on: those named, or every GPU, or the CPU; raises UserError if one does not exist."""
    gpus = [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    existing = ["cpu", *gpus, *(["cuda"] if gpus else [])]
    unknown = [name for name in names if name not in existing]
    if unknown:
        raise UserError.of(Fault("devices", f"{name!r} does not exist. {suggest(name, existing)}") for name in unknown)
    return [torch.device(name) for name in names or gpus or ["cpu"]]


@contextmanager
def one_thread() -> Iterator[None]:
    """Use one thread for short operations: several would wait for each other on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


class ClientStore:
    """Clients by name. Up to `room` bytes of states stay in memory, the last used ones; clients at work come on top.

    A client that never worked has no state to save: it is built when it is needed, always in the same first state.
    """

    def __init__(self, clients: Sequence[ClientPlan | Client], folder: Path | None = None, room: float = inf) -> None:
        """:param clients: as plans, or as they are, if they all stay in memory.
        :param folder: where states wait, made by `open`; if there is none, all stay in memory.
        """
        self.clients = {each.profile.client: each for each in clients}
        self._folder, self._room = folder, inf if folder is None else room
        # In memory, each with the bytes of its state; the last used client is last.
        self._in_memory = {name: (each, 0) for name, each in self.clients.items() if isinstance(each, Client)}
        self._changed: set[str] = set()  # whose states are newer than their files
        self._files: dict[str, tuple[Path, str]] = {}  # states and their checksums
        self._unsynced: set[Path] = set()  # files that a crash of the system may damage; no checkpoint has them
        self._leaving: set[str] = set()  # whose states are being written, outside of the lock
        self._freed = 0  # bytes of states that left memory since it was returned to the system
        self._lock = Condition()

    def restore(self, folder: Path, checksums: Mapping[str, str]) -> None:
        """Take the states of a checkpoint; raises ValueError if one is damaged."""
        for name, checksum in checksums.items():
            if name in self.clients and checksum:
                load_state(folder / _file(name), checksum)
                self._files[name] = folder / _file(name), checksum

    def open(self) -> None:
        """Make the folder, with the states of the checkpoint, which may be removed before they change."""
        if self._folder is None:
            return
        shutil.rmtree(self._folder, ignore_errors=True)
        private_folder(self._folder)
        for name, (path, checksum) in self._files.items():
            link_whole(path, self._folder / _file(name))
            self._files[name] = self._folder / _file(name), checksum

    def close(self) -> None:
        """Remove the folder, and let go of all clients."""
        self._in_memory.clear()
        self.clients.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def prepare(self, names: Iterable[str]) -> None:
        """Let those of these clients that need their first values draw them, one after another."""
        for name in names:
            if name not in self._in_memory and not (name in self._files and self.plan(name).first):
                self.plan(name).draw()

    def plan(self, name: str) -> ClientPlan:
        """The plan of a client that is built when it is needed."""
        client = self.clients[name]
        assert not isinstance(client, Client)
        return client

    @contextmanager
    def borrow(self, name: str, *, changed: bool = True) -> Iterator[Client]:
        """A client to work with; `changed` says whether that changes its state."""
        client = self._take(name)
        try:
            yield client
        finally:
            self._put_back(client, changed)

    def save(self, folder: Path, parallel_map: Callable[..., Iterable[None]] = map) -> dict[str, str]:
        """Write what changed, and link all states into a folder; returns checksums, empty for first states."""
        changed = [client for client, _ in self._in_memory.values() if client.name in self._changed]
        list(parallel_map(self._write, changed))
        list(parallel_map(sync_file, self._unsynced))
        self._unsynced.clear()
        for name, (path, _) in self._files.items():
            link_whole(path, folder / _file(name))
        return {name: self._files[name][1] if name in self._files else "" for name in self.clients}

    def _take(self, name: str) -> Client:
        with self._lock:
            self._lock.wait_for(lambda: name not in self._leaving)
            if name in self._in_memory:
                return self._in_memory.pop(name)[0]
            file = self._files.get(name)
        return self.plan(name).build(load_state(*file) if file else None)

    def _put_back(self, client: Client, changed: bool) -> None:
        client.drop_gradients()
        nbytes = client.nbytes
        with self._lock:
            self._in_memory[client.name] = client, nbytes
            if changed:
                self._changed.add(client.name)
            leaving = self._make_room()
            self._leaving |= leaving.keys()
        try:
            for name, each in leaving.items():
                if name in self._changed:
                    self._write(each)
        finally:
            with self._lock:
                self._leaving -= leaving.keys()
                self._lock.notify_all()

    def _make_room(self) -> dict[str, Client]:
        """Take clients out of memory, those first that worked longest ago."""
        leaving: dict[str, Client] = {}
        size = sum(size for _, size in self._in_memory.values())
        while size > self._room:
            name = next(iter(self._in_memory))
            leaving[name], nbytes = self._in_memory.pop(name)
            size, self._freed = size - nbytes, self._freed + nbytes
        if self._freed > 2**26:  # returning memory to the system takes time
            self._freed = 0
            return_freed_memory()
        return leaving

    def _write(self, client: Client) -> None:
        """Write the state of a client."""
        assert self._folder is not None
        path = self._folder / _file(client.name)
        self._files[client.name] = path, save_state(path, client.current, sync=False)
        self._unsynced.add(path)
        self._changed.discard(client.name)


def _file(client: str) -> str:
    return f"client-{client}.safetensors"


class ClientQueue:
    """Clients that wait for a device slot, the one with the most work first.

    A slot of a GPU prefers clients of a kind for which it has captured a step already, then those of a new kind.
    """

    def __init__(self, waiting: Iterable[str], kinds: Mapping[str, str]) -> None:
        """`kinds` are the clients' kinds by name."""
        self._waiting, self._kinds, self._lock = list(waiting), kinds, Lock()

    def next(self, slot: DeviceSlot, others: Iterable[DeviceSlot]) -> str | None:
        """The next client for this slot of several; None if no client waits."""
        with self._lock:
            if not self._waiting:
                return None
            taken = {kind for other in others for kind in other.kinds}
            captured = [name for name in self._waiting if slot.captures and self._kinds[name] in slot.kinds]
            new = [name for name in self._waiting if slot.captures and self._kinds[name] not in taken]
            name = next(iter(captured or new or self._waiting))
            self._waiting.remove(name)
            slot.kinds.add(self._kinds[name])
            return name
