"""Small clients at the same time on a GPU: `python benchmarks/slots.py`.

Rounds of `scenes_1c`, six clients with swin_micro on 64×64 pixels, without evaluation: one client at a time with images
from host memory, as large ones are; one at a time with images that stay on the GPU; and two at a time, as runs of
small models do. The least of some rounds counts, and every variant has to end with the same bits.
"""

from collections.abc import Iterator, Sequence

import torch
from row import Row, show

from fedhca2.clients import DeviceSlot
from fedhca2.data.batches import DeviceFeed
from fedhca2.experiment import Experiment
from fedhca2.federation.in_process import InProcess
from gpu import GPU, clients_at, rounds

ROUNDS = 6


def seconds(slots: Sequence[DeviceSlot], count: int) -> tuple[float, dict[str, torch.Tensor]]:
    """Return the least seconds of a round after the first, and all tensors at the end."""
    experiment = Experiment.load("scenes_1c")
    clients = clients_at(slots[0], experiment)
    took = [trained + served for _, trained, served in rounds(experiment, InProcess(clients, slots), count)]
    tensors = {f"{client.name} {name}": t.cpu() for client in clients for name, t in client.current.tensors.items()}
    return min(took[1:]), tensors


def slot() -> DeviceSlot:
    return DeviceSlot(GPU, keeps=True)


def differing(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> list[str]:
    return [name for name, tensor in one.items() if not tensor.equal(other[name])]


def rows(quick: bool = False) -> Iterator[Row]:
    """Yield every row as it is measured."""
    count, most = 2 if quick else ROUNDS, DeviceFeed.max_client_bytes
    DeviceFeed.max_client_bytes = 0
    before, expected = seconds([DeviceSlot(GPU)], count)
    DeviceFeed.max_client_bytes = most
    yield Row("six small clients, one at a time, images from host memory", before, "s a round")
    serial, results = seconds([slot()], count)
    assert not differing(results, expected)
    yield Row("… images and states stay on the GPU", serial, "s a round")
    together, results = seconds([slot(), slot()], count)
    assert not differing(results, expected)
    yield Row("… at two slots, as in a run", together, "s a round")
    yield Row("slots against one at a time, images from host memory", together / before, "of its time", at_most=1 / 2)
    yield Row("slots against one at a time", together / serial, "of its time", at_most=3 / 4)


if __name__ == "__main__":
    show(rows())
