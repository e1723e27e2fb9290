"""Device slots: a GPU only holds the client that is working on it, unless there is room for all."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from time import perf_counter
from typing import TYPE_CHECKING, Literal, TypeVar

import torch
from torch import Tensor

from fedhca2.clients.capture import Captures
from fedhca2.compiling import free_memory, without_collecting
from fedhca2.data.feed import DeviceFeed
from fedhca2.packing import copied_together

if TYPE_CHECKING:
    from fedhca2.clients.client import Client

T = TypeVar("T")
SMALL = 2**18  # bytes below which a copy costs more than its bytes
MOST_SLOTS = 4  # on one GPU: one interpreter serves them all, and more gained nothing on an H200
GAIN = 1.15  # how much faster twice as many slots should be
STEPS = 20  # at each slot in one measurement, at least
StepKind = Literal["plain", "captured", "compiled"]
Trial = Callable[["DeviceSlot"], int]  # does what a client does in a round, at a slot; returns how many steps it took


class Stopped(Exception):  # noqa: N818
    """Work at a device slot ended early, because `DeviceSlot.stop` was set."""


class DeviceSlot:
    """A device for one client at a time, with the graphs captured on it and the feed of its batches.

    Several device slots on one GPU let several clients work at the same time.
    """

    def __init__(self, device: torch.device, step: StepKind = "captured", *, keeps: bool = False) -> None:
        """`keeps`: clients stay on the GPU when they have worked."""
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        self.device, self.keeps = device, keeps
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        gpu = device.type == "cuda" and step != "plain"
        self.captures = Captures(device, compile=step == "compiled") if gpu else None
        self.feed = DeviceFeed(device, compile=step == "compiled") if device.type == "cuda" else None
        self.kinds: set[str] = set()  # of clients that have worked here
        self.stop = Event()  # while it is set, work here ends with the current batch

    def until_stopped(self, batches: Iterable[T]) -> Iterator[T]:
        """Yield the batches, and raise Stopped instead of the next one when `stop` is set."""
        for batch in batches:
            if self.stop.is_set():
                raise Stopped
            yield batch
            if self.stop.is_set():  # before the next one is read
                raise Stopped

    def release(self) -> None:
        """Let go of graphs, images and other memory; the slot takes no further steps."""
        self.captures = self.feed = None
        if self.device.type == "cuda":
            torch.cuda.empty_cache()


@contextmanager
def at_work(client: "Client", place: DeviceSlot) -> Iterator[None]:
    """Move everything a client holds to a device slot for a while, then back to host memory, unless it keeps it."""
    device = place.device
    if device.type == "cpu":
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(place.stream):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())  # which may still be writing the rows
        was_there = client.where == device
        # Rows that it replaces may be memory of another slot's stream, which that slot would use again at once.
        held = client.exchange.tensors()
        if not was_there:
            _move(client, lambda tensor: tensor.to(device, non_blocking=True))
        try:
            yield
        finally:
            if not was_there and not place.keeps:
                _move(client, _pinned)
            torch.cuda.current_stream().synchronize()
            held.clear()


def _move(client: "Client", copied: Callable[[Tensor], Tensor]) -> None:
    """Move everything a client holds: large tensors one by one, and small ones, of which there are many, together."""
    held: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor

    client.move(collect)
    moved = iter(copied_together([tensor for tensor in held if _is_small(tensor)], copied))
    client.move(lambda tensor: next(moved) if _is_small(tensor) else copied(tensor))


def _is_small(tensor: Tensor) -> bool:
    return tensor.nbytes < SMALL and tensor.is_contiguous()


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned memory; it is complete when the stream has reached this point."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def worthwhile_slots(first: DeviceSlot, trials: Sequence[Trial], another: Callable[[], DeviceSlot]) -> list[DeviceSlot]:
    """The first slot of a GPU, and `another` and another, as long as twice as many take more steps in a second.

    What counts is measured: one client's trial at each slot, all at the same time. Where their turns are short, clients
    wait for the one interpreter more than for the GPU, and the longer the more of them there are. What cannot gain
    enough is not tried: trials capture steps, which takes seconds.
    """
    before = free_memory(first.device)
    slots = [first]
    rate = _rate(slots, trials)
    taken = before - free_memory(first.device)
    while more := min(len(slots), len(trials) - len(slots), MOST_SLOTS - len(slots)):
        if free_memory(first.device) < 2 * more * taken:
            break
        wider = [*slots, *(another() for _ in range(more))]
        try:
            faster = _rate(wider, trials)
        except torch.OutOfMemoryError:
            break  # somebody else took what was free
        gain = faster / rate
        if gain < GAIN:
            break
        slots, rate = wider, faster
        if most_gain_after(gain) < GAIN:
            break
    return slots


def most_gain_after(gain: float) -> float:
    """The most that can be gained by doubling something again which gained this when it was doubled: Amdahl's law.

    A part f of the time does not shrink: twice as many leave 1 / gain = f + (1 − f) / 2, four times f + (1 − f) / 4.

    >>> most_gain_after(2.0), most_gain_after(1.5), most_gain_after(1.0)
    (2.0, 1.3333333333333333, 1.0)
    """
    return 2 / (3 - min(gain, 2.0))


def _rate(slots: Sequence[DeviceSlot], trials: Sequence[Trial]) -> float:
    """Steps in a second when every slot takes them, the most of two measurements."""

    def work(trial: Trial, slot: DeviceSlot) -> int:
        steps = 0
        while steps < STEPS:
            steps += trial(slot)
        return steps

    rates = []
    with ThreadPoolExecutor(len(slots)) as pool, without_collecting():
        for _ in range(3):
            began = perf_counter()
            taken = sum(pool.map(work, trials, slots))
            rates.append(taken / (perf_counter() - began))
    return max(rates[1:])  # the first time they capture
