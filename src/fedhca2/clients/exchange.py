"""What a client takes from the server, and what leaves it."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor

from fedhca2.clients.privacy import privatise
from fedhca2.messages import Base, Delivery, Order
from fedhca2.params import Slot, add_scaled, assign, flatten, layer_products

if TYPE_CHECKING:
    from fedhca2.clients.client import Client

LARGEST = torch.finfo(torch.float32).max


def leaving(client: "Client", order: Order, uploads: list[Slot]) -> tuple[dict[Slot, Tensor], dict[Slot, Tensor]]:
    """The rows that are sent, and the updates that agreement is measured on."""
    trained = own_rows(client, client.start)
    updates = {slot: trained[slot] - start for slot, start in client.start.items()}
    wants_updates = {slot: order.upload[slot.part] == "updates" for slot in uploads}
    if not client.privacy.active:
        return {slot: updates[slot] if wants_updates[slot] else trained[slot] for slot in uploads}, updates
    # Parameters go up as what the server knows already plus a clipped and noised change: what was trained in
    # earlier rounds shows in no other way than it did then. Agreement is measured on what is sent anyway.
    changes = {
        slot: updates[slot] if wants_updates[slot] else trained[slot] - client.published[slot] for slot in uploads
    }
    changes = privatise(changes, client.privacy, client.noise_key, order.round)
    rows = {
        slot: change if wants_updates[slot] else client.published[slot] + change for slot, change in changes.items()
    }
    client.published |= {slot: row for slot, row in rows.items() if not wants_updates[slot]}
    return rows, {slot: row for slot, row in rows.items() if wants_updates[slot]}


def own_rows(client: "Client", slots: Iterable[Slot]) -> dict[Slot, Tensor]:
    """The values of slots in the model that is shared."""
    held = client.shared.model.slots()
    return {slot: flatten(held[slot], client.layouts[slot]) for slot in slots}


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
        if added > (limit := client.limit(slot, round)):
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


def agreement_with(client: "Client", slot: Slot, update: Tensor) -> tuple[float, ...]:
    """⟨last aggregated update, own update⟩ for each weight that scaled the former: minus the weight's gradient."""
    sent, weights = client.remembered[slot]
    products = layer_products(sent, update, client.layouts[slot])
    return tuple(products.tolist()) if weights > 1 else (float(products.sum()),)
