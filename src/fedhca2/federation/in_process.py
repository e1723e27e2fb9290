"""The fleet in this process: a thread for each GPU, or for each core of the CPU, with one client at a time."""

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

from fedhca2.clients import BatchWatch, Client
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
            client.name: self.pools[client.device].submit(client.perform, orders[client.name], watch)
            for client in busiest
        }
        return {name: waiting[name].result() for name in orders}


def _pool(device: torch.device, clients: int) -> ThreadPoolExecutor:
    """One worker for a GPU. On a CPU one for each core: small models gain nothing from several threads in one step."""
    if device.type != "cpu":
        return ThreadPoolExecutor(1)
    workers = max(1, min(len(os.sched_getaffinity(0)), clients))
    threads = 1 if workers > 1 else torch.get_num_threads()
    return ThreadPoolExecutor(workers, initializer=torch.set_num_threads, initargs=(threads,))
