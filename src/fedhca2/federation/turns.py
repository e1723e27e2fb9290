"""Whose turn it is at which device slot, and how many slots a GPU is worth."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from threading import Lock
from time import perf_counter

import torch

from fedhca2.clients import Client, DeviceSlot, at_work
from fedhca2.clients.capture import CapturedStep
from fedhca2.clients.step import PLAIN, set_mode

MOST_SLOTS = 4  # on one GPU: one interpreter serves them all, and more gained nothing on an H200
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
    before = _free_memory(first)
    slots, steps = [first], [_captured(clients[0], first)]
    taken = before - _free_memory(first)
    rate = _rate(slots, steps)
    while more := min(len(slots), len(clients) - len(slots), MOST_SLOTS - len(slots)):
        if _free_memory(first) < 2 * more * taken:
            break
        wider = [*slots, *(another() for _ in range(more))]
        steps += [_captured(clients[number], wider[number]) for number in range(len(slots), len(wider))]
        faster = _rate(wider, steps)
        if faster < GAIN * rate:
            break
        slots, rate = wider, faster
    return slots


def _free_memory(slot: DeviceSlot) -> int:
    """Bytes that nobody uses on the slot's GPU."""
    return torch.cuda.mem_get_info(slot.device)[0]


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
