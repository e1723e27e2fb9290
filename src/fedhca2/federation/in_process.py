"""Clients at work in this process: a thread for each device slot of a GPU, or for each core of the CPU."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from fedhca2.clients import BatchWatch, Client, CompilingError, DeviceSlot, Stopped, Training
from fedhca2.config import suggest
from fedhca2.cores import usable_cores
from fedhca2.errors import Fault, UserError
from fedhca2.experiment.clients import client_kind
from fedhca2.federation.client_store import ClientQueue, ClientStore
from fedhca2.imports import is_raised_in, one_line
from fedhca2.messages import Order, Profile, Reply

T = TypeVar("T")


class InProcess:
    """Clients from a store. Their results do not depend on the device slot or on how many work in parallel."""

    summer = None
    absent: Mapping[str, str] = {}

    def __init__(
        self,
        clients: ClientStore | Sequence[Client],
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

    @property
    def expected(self) -> Mapping[str, Profile]:
        """All clients take part from the start."""
        return self.profiles

    @property
    def images(self) -> Mapping[str, int]:
        """All images are counted here."""
        return {name: profile.samples for name, profile in self.profiles.items()}

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

    def _queue(self, names: Collection[str]) -> ClientQueue:
        self.store.prepare(names)
        return ClientQueue(sorted(names, key=lambda name: self.store.clients[name].load, reverse=True), self.kinds)

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
