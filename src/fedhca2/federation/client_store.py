"""A store that keeps the last used clients in memory and the others' states in files; and a queue of clients."""

import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from pathlib import Path
from threading import Condition, Lock

from fedhca2.aggregation.rows import return_freed_memory
from fedhca2.clients import Client, DeviceSlot, load_state, save_state
from fedhca2.experiment.build import ClientPlan
from fedhca2.whole_files import link_whole, private_folder, sync_file


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
            if name not in self._in_memory and not (name in self._files and self.plan(name).is_drawn):
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
        plan = self.plan(name)
        return plan.rebuild(load_state(*file)) if file else plan.build()

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
