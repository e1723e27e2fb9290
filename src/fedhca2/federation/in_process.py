"""The fleet in this process: a thread for each GPU, or for each core of the CPU, with one client at a time."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

import torch

from fedhca2.clients import BatchWatch, Client, CompilingError, DeviceSlot, load_state, save_state
from fedhca2.cores import usable_cores
from fedhca2.errors import UserError
from fedhca2.messages import Order, Profile, Reply
from fedhca2.run_folder.checkpoints import unusable


class InProcess:
    """Clients as objects in memory. What they compute does not depend on where, or how many of them work at once."""

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
        """Who takes part."""
        return {name: client.profile for name, client in self.clients.items()}

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Carry out every order, those of the clients with most to do first."""
        busiest = sorted((self.clients[name] for name in orders), key=lambda client: client.load, reverse=True)
        waiting = {
            client.name: self.pool.submit(self._perform, client, orders[client.name], watch) for client in busiest
        }
        return {name: waiting[name].result() for name in orders}

    def save(self, folder: Path) -> Mapping[str, str]:
        """Write every client's state; returns their checksums."""
        return {name: save_state(folder / _file(name), client.state()) for name, client in self.clients.items()}

    def restore(self, folder: Path, checksums: Mapping[str, str]) -> None:
        """Put the clients that have a state here where they were; others are new and stay as they are."""
        for name, client in self.clients.items():
            if name in checksums:
                try:
                    client.restore(load_state(folder / _file(name), checksums[name]))
                except (ValueError, KeyError) as error:
                    raise unusable(folder, error) from None

    def _perform(self, client: Client, order: Order, watch: BatchWatch) -> Reply:
        """Carry out an order at the next device slot that is free."""
        place = self.free.get()
        try:
            reply = client.perform(order, watch, place)
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
                [f"training.step: could not be compiled: {error}. --set training.step=captured does without"]
            ) from error
        finally:
            self.free.put(place)
        return replace(reply, rows={slot: row.to(self.home) for slot, row in reply.rows.items()})


def _file(client: str) -> str:
    return f"client-{client}.safetensors"
