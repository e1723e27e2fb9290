"""What a client takes from the server, and what it does not."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from fedhca2.clients.reach import ALIKE, noise_reach, trained_reach
from fedhca2.messages import Base, Delivery, Order
from fedhca2.params import Slot, add_scaled, assign, flatten

if TYPE_CHECKING:
    from fedhca2.clients.client import Client

LARGEST = torch.finfo(torch.float32).max


def receive(client: "Client", order: Order) -> str:
    """Take what was sent, all of it or nothing; returns why nothing was taken, if so.

    The next value of a slot is its base plus what was sent; some methods are only pulled towards it.
    """
    for slot, delivery in order.deliveries.items():
        if fault := _misfit(client, slot, delivery):
            return fault
    sent = {slot: _at_hand(client, delivery) for slot, delivery in order.deliveries.items()}
    held = client.shared.model.slots()
    rows = {slot: _next_row(client, slot, held[slot], delivery) for slot, delivery in sent.items()}
    if fault := _excess(client, order.round, sent, rows):
        return fault
    for slot, row in rows.items():
        for addend in sent[slot].addends:
            if addend.remember:
                client.remembered[slot] = (addend.row, len(addend.scale))
        if not client.objective.replaces:
            client.received[slot] = row
            continue
        assign(held[slot], row, client.layouts[slot])
        if client.privacy.active and sent[slot].base == "nothing":
            client.published[slot] = row
    return ""


def _misfit(client: "Client", slot: Slot, delivery: Delivery) -> str:
    """Why a delivery does not fit the model, or nothing."""
    layout = client.layouts.get(slot)
    if layout is None:
        return f"{slot}: should be one of {', '.join(map(str, client.layouts))}"
    if delivery.base not in get_args(Base) or (delivery.base == "start" and slot not in client.start):
        return f"{slot}: base should be a row that is here, found {delivery.base!r:.40}"
    for addend in delivery.addends:
        if addend.row.shape != (layout.numel,) or not addend.row.is_floating_point():
            return f"{slot}: row should be of {layout.numel} floating numbers, found {tuple(addend.row.shape)}"
        if len(addend.scale) not in (1, len(layout.layers)):
            return f"{slot}: scale should be 1 number or {len(layout.layers)}, found {len(addend.scale)}"
        if not all(abs(scale) <= LARGEST for scale in addend.scale):
            return f"{slot}: scale should be finite, found NaN, infinite or too large values"
    return ""


def _excess(client: "Client", round: int, sent: Mapping[Slot, Delivery], rows: Mapping[Slot, Tensor]) -> str:
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
        if added > (limit := longest(client, slot, round)):
            return f"{slot}: rows should be at most {limit:.4g} long, as training can have made them, found {added:.4g}"
    return ""


def _at_hand(client: "Client", delivery: Delivery) -> Delivery:
    """The same rows where the client works."""
    return replace(
        delivery, addends=tuple(replace(addend, row=addend.row.to(client.where)) for addend in delivery.addends)
    )


def _next_row(client: "Client", slot: Slot, held: Mapping[str, Tensor], delivery: Delivery) -> Tensor:
    """A slot's base plus what was sent."""
    layout = client.layouts[slot]
    if delivery.base == "nothing":
        row = torch.zeros(layout.numel, device=client.where)
    else:
        row = client.start[slot] if delivery.base == "start" else flatten(held, layout)
    for addend in delivery.addends:
        row = add_scaled(row, addend.row, torch.tensor(addend.scale, dtype=torch.float64), layout)
    return row


def longest(client: "Client", slot: Slot, round: int) -> float:
    """The longest that rows for a slot can be after so many rounds, if they come from training as this client's is.

    Others have other images and epochs, so they may have come ten times as far. Running statistics have no limit: they
    follow the data.
    """
    if slot.part.endswith("_norms"):
        return inf
    work, numel = client.work, client.layouts[slot].numel
    epochs, total = range((round + 1) * work.epochs), work.rounds * work.epochs
    trained = trained_reach(client.training, len(work.train), epochs, total, numel)
    return ALIKE * (client.first_lengths[slot] + trained + noise_reach(client.others_noise, round + 1, numel))
