"""The fleet in this process: one thread per device, each with its clients one after the other."""

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from fedhca2.clients import BatchWatch, Client
from fedhca2.messages import Order, Profile, Reply


class InProcess:
    """Clients as objects in memory."""

    def __init__(self, clients: Sequence[Client]) -> None:
        self.clients = {client.name: client for client in clients}
        self.devices = {client.device for client in clients}

    @property
    def profiles(self) -> Mapping[str, Profile]:
        """Who takes part."""
        return {name: client.profile for name, client in self.clients.items()}

    def perform(self, orders: Mapping[str, Order], watch: BatchWatch) -> Mapping[str, Reply]:
        """Carry out every order."""

        def work(device: object) -> list[Reply]:
            mine = [client for name, client in self.clients.items() if name in orders and client.device == device]
            return [client.perform(orders[client.name], watch) for client in mine]

        if len(self.devices) == 1:
            replies = work(*self.devices)
        else:
            with ThreadPoolExecutor(len(self.devices)) as pool:
                replies = [reply for done in pool.map(work, self.devices) for reply in done]
        return {reply.client: reply for reply in replies}
