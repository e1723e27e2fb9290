"""What a client exchanges with the server: what it takes, what it does not take, and what leaves it."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from math import isfinite
from secrets import token_bytes
from typing import Any, get_args

import torch
from torch import Tensor

from fedhca2.clients.privacy import KEY_BYTES, Privacy, privatise
from fedhca2.clients.reach import RowLimits
from fedhca2.messages import Base, Delivery, Order
from fedhca2.models.multitask import MultiTaskModel, layouts
from fedhca2.params import Layout, Slot, add_scaled, assign, flatten, layer_products

LARGEST = torch.finfo(torch.float32).max

Rows = dict[Slot, Tensor]


class Exchange:
    """The rows that a client keeps from one round to the next, by slot. They are part of its state.

    Methods are given the model that is shared; they find its values and, when something was sent, change them.
    """

    def __init__(self, model: MultiTaskModel, privacy: Privacy, limits: RowLimits, *, replaces: bool) -> None:
        """`replaces`: what is sent takes the place of the client's values; otherwise they are pulled towards it."""
        self.layouts = layouts(model)
        self.privacy, self.limits, self.replaces = privacy, limits, replaces
        self.start: Rows = {}  # before the last training, of the parts that went up
        self.received: Rows = {}  # sent by the server, for local training to be pulled towards
        self.remembered: dict[Slot, tuple[Tensor, int]] = {}  # last aggregated update, and how many weights scale it
        self.published: Rows = {}  # with privacy, as the server knows them already
        self.noise_key = token_bytes(KEY_BYTES)  # of this client in this run; it goes nowhere but into its state

    def rows(self, model: MultiTaskModel, slots: Iterable[Slot]) -> Rows:
        """The model's values of these slots."""
        held = model.slots()
        return {slot: flatten(held[slot], self.layouts[slot]) for slot in slots}

    def publish_first(self, model: MultiTaskModel) -> None:
        """With privacy: before anything has been sent, the server knows the values that everybody starts from."""
        if self.privacy.active and not self.published:
            self.published = self.rows(model, self.layouts)

    def receive(self, model: MultiTaskModel, order: Order) -> str:
        """Take what was sent, all of it or nothing; returns why nothing was taken, if so.

        The next value of a slot is its base plus what was sent; some methods are only pulled towards it.
        """
        for slot, delivery in order.deliveries.items():
            if fault := misfit(slot, delivery, self.layouts, self.start):
                return fault
        where = next(model.parameters()).device
        sent = {
            slot: replace(delivery, addends=tuple(replace(each, row=each.row.to(where)) for each in delivery.addends))
            for slot, delivery in order.deliveries.items()
        }
        held = model.slots()
        rows = {slot: self._next_row(slot, delivery, held[slot], where) for slot, delivery in sent.items()}
        if fault := excess(sent, rows, lambda slot: self.limits.longest(slot, order.round)):
            return fault
        for slot, row in rows.items():
            for addend in sent[slot].addends:
                if addend.remember:
                    self.remembered[slot] = (addend.row, len(addend.scale))
            if not self.replaces:
                self.received[slot] = row
                continue
            assign(held[slot], row, self.layouts[slot])
            if self.privacy.active and sent[slot].base == "nothing":
                self.published[slot] = row
        return ""

    def _next_row(self, slot: Slot, delivery: Delivery, held: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """A slot's base plus what was sent."""
        layout = self.layouts[slot]
        if delivery.base == "nothing":
            row = torch.zeros(layout.numel, device=device)
        else:
            row = self.start[slot] if delivery.base == "start" else flatten(held, layout)
        for addend in delivery.addends:
            row = add_scaled(row, addend.row, torch.tensor(addend.scale, dtype=torch.float64), layout)
        return row

    def begin_training(self, model: MultiTaskModel, order: Order) -> None:
        """Keep the values that training starts from."""
        self.start = self.rows(model, {*self._uploads(order), *self.remembered})

    def outgoing(self, model: MultiTaskModel, order: Order) -> tuple[Rows, dict[Slot, tuple[float, ...]]]:
        """The rows that are sent after training, and the agreement of the updates with what was sent before."""
        rows, updates = self._rows_and_updates(model, order)
        return rows, {slot: self._agreement(slot, row) for slot, row in updates.items() if slot in self.remembered}

    def _rows_and_updates(self, model: MultiTaskModel, order: Order) -> tuple[Rows, Rows]:
        """The rows that are sent, and the updates that agreement is measured on."""
        uploads = self._uploads(order)
        trained = self.rows(model, self.start)
        updates = {slot: trained[slot] - start for slot, start in self.start.items()}
        wants_updates = {slot: order.upload[slot.part] == "updates" for slot in uploads}
        if not self.privacy.active:
            return {slot: updates[slot] if wants_updates[slot] else trained[slot] for slot in uploads}, updates
        # Parameters go up as what the server knows already plus a clipped and noised change: what was trained in
        # earlier rounds shows in no other way than it did then. Agreement is measured on what is sent anyway.
        changes = {
            slot: updates[slot] if wants_updates[slot] else trained[slot] - self.published[slot] for slot in uploads
        }
        changes = privatise(changes, self.privacy, self.noise_key, order.round)
        rows = {
            slot: change if wants_updates[slot] else self.published[slot] + change for slot, change in changes.items()
        }
        self.published |= {slot: row for slot, row in rows.items() if not wants_updates[slot]}
        return rows, {slot: row for slot, row in rows.items() if wants_updates[slot]}

    def _agreement(self, slot: Slot, update: Tensor) -> tuple[float, ...]:
        """⟨last aggregated update, own update⟩ for each weight that scaled the former: minus the weight's gradient."""
        sent, weights = self.remembered[slot]
        products = layer_products(sent, update, self.layouts[slot])
        return tuple(products.tolist()) if weights > 1 else (float(products.sum()),)

    def _uploads(self, order: Order) -> list[Slot]:
        return [slot for slot in self.layouts if slot.part in order.upload]

    def move(self, moved: Callable[[Tensor], Tensor]) -> None:
        """Bring every row to another device."""
        for rows in (self.start, self.received, self.published):
            rows.update({slot: moved(row) for slot, row in rows.items()})
        self.remembered.update({slot: (moved(row), count) for slot, (row, count) in self.remembered.items()})

    def tensors(self) -> dict[str, Tensor]:
        """Its rows by name, for the client's state."""
        rows = {"start": self.start, "received": self.received, "published": self.published}
        rows["remembered"] = {slot: row for slot, (row, _) in self.remembered.items()}
        return {f"{kind}/{slot}": row for kind, held in rows.items() for slot, row in held.items()}

    def values(self) -> dict[str, Any]:
        """What else belongs to the client's state."""
        counts = {str(slot): count for slot, (_, count) in self.remembered.items()}
        return {"remembered": counts, "noise_key": self.noise_key.hex()}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], device: torch.device) -> None:
        """Go on from what `tensors` and `values` gave."""
        rows: dict[str, Rows] = {"start": {}, "received": {}, "published": {}, "remembered": {}}
        for name, tensor in tensors.items():
            kind, _, slot = name.partition("/")
            if kind in rows:
                rows[kind][Slot.parse(slot)] = tensor.to(device)
        self.start, self.received, self.published = rows["start"], rows["received"], rows["published"]
        counts = values["remembered"]
        self.remembered = {slot: (row, counts[str(slot)]) for slot, row in rows["remembered"].items()}
        self.noise_key = bytes.fromhex(values["noise_key"])


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
