"""What a client does not take from the server."""

from collections.abc import Callable, Container, Mapping
from math import isfinite
from typing import get_args

import torch
from torch import Tensor

from fedhca2.messages import Base, Delivery
from fedhca2.params import Layout, Slot

LARGEST = torch.finfo(torch.float32).max


def misfit(slot: Slot, delivery: Delivery, layouts: Mapping[Slot, Layout], starts: Container[Slot]) -> str:
    """Why a delivery does not fit the model, or nothing; `starts` are the slots whose row before training is here."""
    layout = layouts.get(slot)
    if layout is None:
        return f"{slot}: should be one of {', '.join(map(str, layouts))}"
    if delivery.base not in get_args(Base) or (delivery.base == "start" and slot not in starts):
        return f"{slot}: base should be a row that is here, found {delivery.base!r:.40}"
    for addend in delivery.addends:
        if addend.row.shape != (layout.numel,) or not addend.row.is_floating_point():
            return f"{slot}: row should be of {layout.numel} floating numbers, found {tuple(addend.row.shape)}"
        if len(addend.scale) not in (1, len(layout.layers)):
            return f"{slot}: scale should be 1 number or {len(layout.layers)}, found {len(addend.scale)}"
        if not all(abs(scale) <= LARGEST for scale in addend.scale):
            return f"{slot}: scale should be finite, found NaN, infinite or too large values"
    return ""


def excess(sent: Mapping[Slot, Delivery], rows: Mapping[Slot, Tensor], longest: Callable[[Slot], float]) -> str:
    """Why what was sent cannot come from training, or would not leave numbers, or nothing; it waits for a GPU once.

    Nothing but what the server knows decides: lengths of what it sent itself, and the client's first values and steps.
    """
    addends = [addend.row for delivery in sent.values() for addend in delivery.addends]
    if not rows:
        return ""
    lengths = torch.stack(torch._foreach_norm([*rows.values(), *addends])).tolist()
    of_addends = iter(lengths[len(rows) :])
    for (slot, delivery), length in zip(sent.items(), lengths, strict=False):
        added = sum(max(map(abs, addend.scale)) * next(of_addends) for addend in delivery.addends)
        if not isfinite(added) or not isfinite(length):
            return f"{slot}: rows should be finite, found NaN, infinite or too large values"
        if added > (limit := longest(slot)):
            return f"{slot}: rows should be at most {limit:.4g} long, as training can have made them, found {added:.4g}"
    return ""
