"""Whose turn it is at which device slot, and how many slots a GPU is worth."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from threading import Lock
from time import perf_counter

import torch

from fedhca2.clients import Client, DeviceSlot, at_work
from fedhca2.clients.capture import CapturedStep
from fedhca2.clients.step import PLAIN, set_mode

MOST_SLOTS = 8  # on one GPU: the threads that serve them share one core
GAIN = 1.15  # how much faster twice as many slots should be
REPLAYS = 20  # steps in one measurement


class Turns:
    """Clients that wait for a device slot, the one with the most work first.

    A slot of a GPU prefers clients of a kind for which it has captured a step already, then those of a new kind.
    """

    def __init__(self, waiting: Iterable[str], kinds: Mapping[str, str]) -> None:
        """`kinds` are the clients' kinds by name."""
        self._waiting, self._kinds, self._lock = list(waiting), kinds, Lock()

    def next(self, slot: DeviceSlot, others: Iterable[DeviceSlot]) -> str | None:
        """The next client for this slot of several; None if nobody waits."""
        with self._lock:
            if not self._waiting:
                return None
            taken = {kind for other in others for kind in other.kinds}
            known = [name for name in self._waiting if slot.captures and self._kinds[name] in slot.kinds]
            new = [name for name in self._waiting if slot.captures and self._kinds[name] not in taken]
            name = next(iter(known or new or self._waiting))
            self._waiting.remove(name)
            slot.kinds.add(self._kinds[name])
            return name

    def end(self) -> None:
        """Let nobody else have a turn."""
        with self._lock:
            self._waiting.clear()


def worthwhile_slots(
    first: DeviceSlot, clients: Sequence[Client], another: Callable[[], DeviceSlot]
) -> list[DeviceSlot]:
    """The first slot of a GPU, and `another` and another, as long as twice as many take more steps in a second.

    What counts is measured: captured steps of these clients, one at each slot, all running at the same time.
    """
    slots, steps = [first], [_captured(clients[0], first)]
    rate, free = _rate(slots, steps), torch.cuda.mem_get_info(first.device)[0]
    while len(slots) < min(len(clients), MOST_SLOTS):
        added = [another() for _ in range(min(len(slots), len(clients) - len(slots), MOST_SLOTS - len(slots)))]
        found = []
        for client, slot in zip(clients[len(slots) :], added, strict=False):
            before, free = free, torch.cuda.mem_get_info(first.device)[0]
            if free < 4 * (before - free):
                return slots
            found.append(_captured(client, slot))
        faster = _rate([*slots, *added], [*steps, *found])
        if faster < GAIN * rate:
            return slots
        slots, steps, rate = [*slots, *added], [*steps, *found], faster
    return slots


def _captured(client: Client, slot: DeviceSlot) -> CapturedStep:
    """The captured step of a client at a slot, as training will use it; its values do not matter."""
    assert slot.captures is not None
    with at_work(client, slot):
        set_mode(client.personal.model, PLAIN.frozen)
        batch = next(iter(islice(client.batches(0, slot), 1)))
        return slot.captures.step(client.personal, batch, PLAIN)


def _rate(slots: Sequence[DeviceSlot], steps: Sequence[CapturedStep]) -> float:
    """Steps in a second when every slot takes them."""
    for _ in range(2):  # the first time to warm up
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(REPLAYS):
            for slot, step in zip(slots, steps, strict=True):
                with torch.cuda.stream(slot.stream):
                    step.graph.replay()
        torch.cuda.synchronize()
        seconds = perf_counter() - began
    return REPLAYS * len(steps) / seconds
