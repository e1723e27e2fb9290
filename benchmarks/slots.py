"""Small clients beside each other on a GPU: `python benchmarks/slots.py`.

Rounds of `scenes_1c`, six clients with swin_micro on 64×64 pixels, without evaluation: one client at a time with images
from host memory, as large ones are; one at a time with images that stay on the GPU; and two at a time, as runs of
small models do. The least of some rounds counts, and every variant has to end with the same bits.
"""

from collections.abc import Iterator, Sequence
from time import perf_counter

import torch
from row import Row, show

from fedhca2.clients import DeviceSlot
from fedhca2.data.feed import DeviceFeed
from fedhca2.experiment import Experiment, assign_shards, open_data
from fedhca2.experiment.build import build_clients
from fedhca2.federation.guard import Guard
from fedhca2.federation.in_process import InProcess
from fedhca2.federation.server import Deliveries, Server
from fedhca2.messages import Order

GPU = torch.device("cuda", 0)
ROUNDS = 6


class Rounds:
    """The rounds of one experiment, at any device slots."""

    def __init__(self) -> None:
        self.experiment = Experiment.load("scenes_1c")
        self.data = open_data(self.experiment)
        self.shards = assign_shards(self.experiment, self.data)

    def clients(self, slot: DeviceSlot) -> list:
        return build_clients(self.experiment, self.data, self.shards, slot)

    def seconds(self, slots: Sequence[DeviceSlot], rounds: int) -> tuple[float, dict[str, torch.Tensor]]:
        """Return the least seconds of a round, and all tensors at the end."""
        clients = self.clients(slots[0])
        fleet, method = InProcess(clients, slots), self.experiment.resolved_method
        server = Server(method, fleet.profiles.values())
        state, took = server.start(), []
        deliveries: Deliveries = {client.name: {} for client in clients}
        for number in range(rounds):
            torch.cuda.synchronize()
            began = perf_counter()
            orders = {name: Order(number, rows, upload=method.uploads(number)) for name, rows in deliveries.items()}
            replies = fleet.perform(orders, lambda *_: None)
            state, deliveries, _ = Guard(server).step(state, replies.values())
            torch.cuda.synchronize()
            took.append(perf_counter() - began)
        held = {f"{client.name} {name}": t.cpu() for client in clients for name, t in client.current.tensors.items()}
        return min(took[1:]), held


def slot() -> DeviceSlot:
    return DeviceSlot(GPU, keeps=True)


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in one.items() if not tensor.equal(other[name])]


def rows(quick: bool = False) -> Iterator[Row]:
    """Yield every row as it is measured."""
    rounds, most = Rounds(), DeviceFeed.max_client_bytes
    DeviceFeed.max_client_bytes = 0
    before, expected = rounds.seconds([DeviceSlot(GPU)], 2 if quick else ROUNDS)
    DeviceFeed.max_client_bytes = most
    yield Row("six small clients, one at a time, images from host memory", before, "s a round")
    serial, found = rounds.seconds([slot()], 2 if quick else ROUNDS)
    assert not differing(found, expected)
    yield Row("… images and states stay on the GPU", serial, "s a round")
    together, found = rounds.seconds([slot(), slot()], 2 if quick else ROUNDS)
    assert not differing(found, expected)
    yield Row("… at two slots, as in a run", together, "s a round")
    yield Row("slots against one at a time, images from host memory", together / before, "of its time", at_most=1 / 2)
    yield Row("slots against one at a time", together / serial, "of its time", at_most=3 / 4)


if __name__ == "__main__":
    show(rows())
