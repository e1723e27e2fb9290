"""The fleet in this process: a thread for each GPU, or for each core of the CPU, with one client at a time."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

from fedhca2.clients import BatchWatch, Client, load_state, save_state
from fedhca2.experiment import ConfigError
from fedhca2.federation.checkpoints import unusable
from fedhca2.messages import Order, Profile, Reply


class InProcess:
    """Clients as objects in memory. What they compute does not depend on how many of them work at once."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = {client.name: client for client in clients}
        self.pools = {device: _pool(device, len(clients)) for device in {client.device for client in clients}}

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Who takes part."""
        return {name: client.profile for name, client in self.clients.items()}

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Carry out every order, those of the clients with most to do first."""
        busiest = sorted((self.clients[name] for name in orders), key=lambda client: client.load, reverse=True)
        waiting = {
            client.name: self.pools[client.device].submit(_perform, client, orders[client.name], watch)
            for client in busiest
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


def _file(client: str) -> str:
    return f"client-{client}.safetensors"


def _perform(client: Client, order: Order, watch: BatchWatch) -> Reply:
    try:
        return client.perform(order, watch)
    except torch.OutOfMemoryError:
        batch = client.training.batch_size
        raise ConfigError(
            [
                f"client {client.name!r}: {client.device} is out of memory. Lower training.batch_size (now {batch}), "
                "the size of the images or the encoder"
            ]
        ) from None


def _pool(device: torch.device, clients: int) -> ThreadPoolExecutor:
    """One worker for a GPU. On a CPU one for each core: small models gain nothing from several threads in one step."""
    if device.type != "cpu":
        return ThreadPoolExecutor(1)
    workers = max(1, min(len(os.sched_getaffinity(0)), clients))
    threads = 1 if workers > 1 else torch.get_num_threads()
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))
