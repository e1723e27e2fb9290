"""Device slots: a GPU only holds the client that is working on it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from fedhca2.clients.capture import Captures
from fedhca2.data.feed import DeviceFeed

if TYPE_CHECKING:
    from fedhca2.clients.client import Client

SMALL = 2**18  # bytes below which a copy costs more than its bytes
StepKind = Literal["plain", "captured", "compiled"]


class DeviceSlot:
    """A device for one client at a time, with the graphs captured on it and the feed of its batches.

    Several device slots on one GPU let several clients work at the same time.
    """

    def __init__(self, device: torch.device, step: StepKind = "captured") -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        gpu = device.type == "cuda" and step != "plain"
        self.captures = Captures(device, compile=step == "compiled") if gpu else None
        self.feed = DeviceFeed(device, compile=step == "compiled") if device.type == "cuda" else None
        self.kinds: set[str] = set()  # of clients that have worked here


@contextmanager
def at_work(client: "Client", place: DeviceSlot) -> Iterator[None]:
    """Move everything a client holds to a device slot for a while, then back to host memory."""
    device = place.device
    if device.type == "cpu" or client.where.type == device.type:
        yield
        return
    with torch.cuda.device(device), torch.cuda.stream(place.stream):
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())  # which may still be writing the rows
        _move(client, lambda tensor: tensor.to(device, non_blocking=True))
        try:
            yield
        finally:
            _move(client, _pinned)
            torch.cuda.current_stream().synchronize()


def _move(client: "Client", copied: Callable[[Tensor], Tensor]) -> None:
    """Move everything a client holds: large tensors one by one, and small ones, of which there are many, together."""
    held: list[Tensor] = []

    def collect(tensor: Tensor) -> Tensor:
        held.append(tensor)
        return tensor

    client.move(collect)
    small: dict[torch.dtype, list[Tensor]] = {}
    for tensor in held:
        if tensor.nbytes < SMALL and tensor.is_contiguous():
            small.setdefault(tensor.dtype, []).append(tensor)
    moved: dict[torch.dtype, Iterator[Tensor]] = {}
    for dtype, tensors in small.items():
        together = copied(torch.cat([tensor.detach().flatten() for tensor in tensors]))
        parts = torch.split(together, [tensor.numel() for tensor in tensors])
        moved[dtype] = (part.view(tensor.shape) for part, tensor in zip(parts, tensors, strict=True))
    client.move(lambda t: next(moved[t.dtype]) if t.nbytes < SMALL and t.is_contiguous() else copied(t))


def _pinned(tensor: Tensor) -> Tensor:
    """A copy in pinned memory; it is complete when the stream has reached this point."""
    return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
