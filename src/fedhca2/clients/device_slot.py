"""Device slots: a GPU only holds the client that is working on it, unless there is room for all."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedhca2.clients.capture import CapturedStep, Captures
from fedhca2.clients.step import PLAIN, set_mode
from fedhca2.data.feed import DeviceFeed

if TYPE_CHECKING:
    from fedhca2.clients.client import Client

ALIGNED = 256  # bytes that tensors are aligned to, as kernels expect
SMALL = 2**18  # bytes below which a copy costs more than its bytes
MOST_SLOTS = 4  # on one GPU: one interpreter serves them all, and more gained nothing on an H200
GAIN = 1.15  # how much faster twice as many slots should be
REPLAYS = 20  # steps in one measurement
StepKind = Literal["plain", "captured", "compiled"]


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
    small: dict[torch.dtype, list[Tensor]] = {}
    for tensor in held:
        if _is_small(tensor):
            small.setdefault(tensor.dtype, []).append(tensor)
    moved = {dtype: iter(copied_together(tensors, copied)) for dtype, tensors in small.items()}
    client.move(lambda tensor: next(moved[tensor.dtype]) if _is_small(tensor) else copied(tensor))


def _is_small(tensor: Tensor) -> bool:
    return tensor.nbytes < SMALL and tensor.is_contiguous()


def copied_together(tensors: Sequence[Tensor], copied: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Copies of tensors of one type, side by side in one copy of all; autograd takes each for a tensor of its own."""
    starts = [0, *accumulate(-(-tensor.nbytes // ALIGNED) * ALIGNED // tensor.element_size() for tensor in tensors)]

    def parts(packed: Tensor) -> list[Tensor]:
        each = zip(starts, tensors, strict=False)
        return [packed[start : start + tensor.numel()].view(tensor.shape) for start, tensor in each]

    packed = tensors[0].new_empty(starts[-1])
    torch._foreach_copy_(parts(packed), [tensor.detach() for tensor in tensors])
    return [part.data for part in parts(copied(packed))]


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned memory; it is complete when the stream has reached this point."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)


def worthwhile_slots(
    first: DeviceSlot, clients: Sequence["Client"], another: Callable[[], DeviceSlot]
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


def _captured(client: "Client", slot: DeviceSlot) -> CapturedStep:
    """The captured step of a client at a slot, as training will use it; its values do not matter."""
    assert slot.captures is not None
    with at_work(client, slot):
        set_mode(client.personal.model, PLAIN.frozen)
        batch = next(client.batches(0, slot))
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
