"""What a client exchanges with the server: the rows it takes or declines, how long these may be, and what it sends."""

from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from math import inf, isfinite, sqrt
from secrets import token_bytes
from typing import Any, get_args

import torch
from torch import Tensor
from torch.nn.utils import get_total_norm

from fedhca2.clients.privacy import KEY_BYTES, Privacy, privatise
from fedhca2.clients.training import BETAS, Training
from fedhca2.messages import Base, Delivery, Order
from fedhca2.objectives import Kept, Objective, parts_of_epochs
from fedhca2.params import (
    Layout,
    Part,
    Slot,
    Slotted,
    add_scaled,
    assign,
    flatten,
    layer_products,
    layouts,
    row_product,
)

ALIKE = 10.0  # fresh rows of one layout come from one distribution, so their lengths are similar

Rows = dict[Slot, Tensor]
Rate = Callable[[Part], float]  # of a part
Agreement = dict[Slot, tuple[float, ...]]
Longest = Callable[[Slot, int], float]  # the longest that a slot's row can be in a round


def trained_reach(training: Training, batches: int, steps: range, total: int, part: Part, numel: int) -> float:
    r"""The farthest that these of `total` steps can move a part's row of `numel` values, for any data.

    An epoch has this number of `batches`. SGD has no such limit: it moves as far as its gradients are long. Adam moves
    a value by at most 7.27 learning rates in a step: with $m = \sum_i w_i g_i$ and $v = \sum_i u_i g_i^2$, Cauchy and
    Schwarz give
    $|m|/\sqrt v \le \sqrt{\sum_i w_i^2/u_i} \le (1-\beta_1)/\sqrt{(1-\beta_2)(1-\beta_1^2/\beta_2)}$.
    """
    if training.optimizer.kind == "sgd":
        return inf
    rates = (
        len(of_epoch) * training.schedule.rate(epoch, total / batches, training.learning_rate)
        for epoch, of_epoch in parts_of_epochs(steps.start, len(steps), batches)
    )
    first, second = BETAS
    reach = (1 - first) / sqrt((1 - second) * (1 - first**2 / second))
    slack = 1.05  # for weight decay and rounding
    return slack * reach * sqrt(numel) * sum(rates) * training.rate_share(part)


def noise_reach(deviation: float, rounds: int, numel: int) -> float:
    """The longest that noise of this many rounds makes a row of `numel` values.

    It is practically never six standard deviations longer than expected.
    """
    return deviation * rounds * (sqrt(numel) + 6.0)


def row_lengths(model: Slotted) -> dict[Slot, float]:
    """The length of each slot's row."""
    rows = {slot: [tensor.detach().float() for tensor in tensors.values()] for slot, tensors in model.slots().items()}
    return {slot: float(get_total_norm(row)) for slot, row in rows.items()}


class DeclinedError(ValueError):
    """Rows that a client does not take; its values stay as they were."""


class Exchange:
    """The rows that a client keeps from one round to the next, by slot. They are part of its state.

    Its methods get the shared model; they read its values, and change them when rows arrive.
    """

    def __init__(self, model: Slotted, privacy: Privacy, longest: Longest, objective: Objective) -> None:
        self.layouts = layouts(model)
        self.privacy, self.longest, self.objective = privacy, longest, objective
        self.start: Rows = {}  # values before the last training, of the uploaded parts
        self.received: Rows = {}  # rows from the server that attract local training
        self.remembered: dict[Slot, tuple[Tensor, int]] = {}  # last aggregated update, and its number of weights
        self.kept: dict[Slot, Kept] = {}  # what the objective keeps of shared slots
        self.published: Rows = {}  # with privacy, the values that the server already knows
        self.noise_key = token_bytes(KEY_BYTES)  # of this client in this run; stored only in its state

    def rows(self, model: Slotted, slots: Iterable[Slot]) -> Rows:
        """The model's values in these slots."""
        tensors = model.slots()
        return {slot: flatten(tensors[slot], self.layouts[slot]) for slot in slots}

    def receive(self, model: Slotted, order: Order) -> None:
        """Take all of the rows; raises DeclinedError, and takes none, if some do not fit or are too long.

        The next value of a slot is its base plus the rows; with some methods it is only an anchor.
        """
        if self.privacy.active and not self.published:  # at first, the server knows what all clients start from
            self.published = self.rows(model, self.layouts)
        for slot, delivery in order.deliveries.items():
            check_delivery(slot, delivery, self.layouts, self.start)
        where = next(model.parameters()).device
        sent = {
            slot: replace(delivery, addends=tuple(replace(each, row=each.row.to(where)) for each in delivery.addends))
            for slot, delivery in order.deliveries.items()
        }
        tensors = model.slots()
        rows = {slot: self._next_row(slot, delivery, tensors[slot], where) for slot, delivery in sent.items()}
        check_lengths(sent, rows, lambda slot: self.longest(slot, order.round))
        for slot, row in rows.items():
            for addend in sent[slot].addends:
                if addend.remember:
                    self.remembered[slot] = (addend.row, len(addend.scale))
            if not self.objective.replaces:
                self.received[slot] = row
                continue
            if slot in self.kept:
                row, self.kept[slot] = self.objective.take(self.kept[slot], row, sent[slot])
            assign(tensors[slot], row, self.layouts[slot])
            if self.privacy.active and sent[slot].base == "nothing":
                self.published[slot] = row

    def _next_row(self, slot: Slot, delivery: Delivery, own: Mapping[str, Tensor], device: torch.device) -> Tensor:
        """A slot's base plus the rows."""
        layout = self.layouts[slot]
        if delivery.base == "nothing":
            row = torch.zeros(layout.numel, device=device)
        else:
            row = self.start[slot] if delivery.base == "start" else flatten(own, layout)
        for addend in delivery.addends:
            row = add_scaled(row, addend.row, torch.tensor(addend.scale, dtype=torch.float64), layout)
        return row

    def begin_training(self, model: Slotted, order: Order) -> None:
        """Keep the values before training."""
        self.start = self.rows(model, {*self._uploads(order), *self.remembered})
        if self.objective.keeps:
            self.kept |= {slot: {} for slot in self._uploads(order) if slot not in self.kept}

    def outgoing(self, model: Slotted, order: Order, steps: int, rate: Rate) -> tuple[Rows, Agreement]:
        """What to send when training has ended well, after some steps with a mean learning rate for each part.

        These are rows, and the inner products of the updates with the rows received before.
        """
        for slot, row in self.rows(model, self.kept).items():
            update = row - self.start.get(slot, row)
            self.kept[slot] = self.objective.learn(self.kept[slot], update, steps, rate(slot.part))
        uploads = self._uploads(order)
        values = {slot for slot in uploads if order.upload[slot.part] == "parameters"}
        trained = self.rows(model, self.start)
        updates = {slot: trained[slot] - start for slot, start in self.start.items()}
        rows = {slot: trained[slot] if slot in values else updates[slot] for slot in uploads}
        if self.privacy.active:
            # Parameters are sent as the value the server already knows plus a clipped and noised change, so what was
            # trained in earlier rounds is revealed only once. Agreement is measured on what is sent anyway.
            changes = {slot: row - self.published[slot] if slot in values else row for slot, row in rows.items()}
            sent = privatise(changes, self.privacy, self.noise_key, order.round)
            self.published |= {slot: self.published[slot] + sent[slot] for slot in values}
            rows = {slot: self.published[slot] if slot in values else row for slot, row in sent.items()}
            updates = {slot: row for slot, row in sent.items() if slot not in values}
        return rows, {slot: self._agreement(slot, row) for slot, row in updates.items() if slot in self.remembered}

    def anchors(self, model: Slotted) -> Rows:
        """The rows that local training is pulled towards, if it is."""
        if self.objective.anchor == "start":
            slots = [slot for slot in self.layouts if slot.part in ("encoder", "decoder")]
            rows = self.rows(model, self.kept if self.objective.keeps else slots)
            shifts = {slot: self.objective.shift(self.kept.get(slot, {})) for slot in rows}
            return {slot: row if (shift := shifts[slot]) is None else row + shift for slot, row in rows.items()}
        return self.received if self.objective.anchor == "received" else {}

    def drifts(self) -> Rows:
        """What every step subtracts in addition to its own, times the learning rate."""
        drifts = {slot: self.objective.drift(kept) for slot, kept in self.kept.items()}
        return {slot: drift for slot, drift in drifts.items() if drift is not None}

    def _agreement(self, slot: Slot, update: Tensor) -> tuple[float, ...]:
        """⟨last aggregated update, own update⟩ for each weight that scaled the former: minus the weight's gradient."""
        sent, weights = self.remembered[slot]
        if weights == 1:
            return (row_product(sent, update),)
        return tuple(layer_products(sent, update, self.layouts[slot]).tolist())

    def _uploads(self, order: Order) -> list[Slot]:
        return [slot for slot in self.layouts if slot.part in order.upload]

    def move(self, moved: Callable[[Tensor], Tensor]) -> None:
        """Move every row to another device."""
        for rows in (self.start, self.received, self.published):
            rows.update({slot: moved(row) for slot, row in rows.items()})
        self.remembered.update({slot: (moved(row), count) for slot, (row, count) in self.remembered.items()})
        self.kept = {slot: {name: moved(row) for name, row in kept.items()} for slot, kept in self.kept.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Its rows by name, for the client's state."""
        rows = {"start": self.start, "received": self.received, "published": self.published}
        rows["remembered"] = {slot: row for slot, (row, _) in self.remembered.items()}
        for slot, kept in self.kept.items():
            for name, row in kept.items():
                rows.setdefault(f"kept {name}", {})[slot] = row
        return {f"{kind}/{slot}": row for kind, by_slot in rows.items() for slot, row in by_slot.items()}

    def values(self) -> dict[str, Any]:
        """The other values of the client's state."""
        counts = {str(slot): count for slot, (_, count) in self.remembered.items()}
        return {"remembered": counts, "noise_key": self.noise_key.hex()}

    def restore(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any], device: torch.device) -> None:
        """Restore what `tensors` and `values` returned."""
        rows: dict[str, Rows] = {"start": {}, "received": {}, "published": {}, "remembered": {}}
        kept: dict[Slot, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            kind, _, slot = name.partition("/")
            if kind in rows:
                rows[kind][Slot.parse(slot)] = tensor.to(device)
            elif kind.startswith("kept "):
                kept.setdefault(Slot.parse(slot), {})[kind.removeprefix("kept ")] = tensor.to(device)
        self.kept = dict(kept)
        self.start, self.received, self.published = rows["start"], rows["received"], rows["published"]
        counts = values["remembered"]
        self.remembered = {slot: (row, counts[str(slot)]) for slot, row in rows["remembered"].items()}
        self.noise_key = bytes.fromhex(values["noise_key"])


def check_delivery(slot: Slot, delivery: Delivery, layouts: Mapping[Slot, Layout], starts: Container[Slot]) -> None:
    """Raise DeclinedError if a delivery does not fit the model. `starts` are the slots with a stored start."""
    layout = layouts.get(slot)
    if layout is None:
        raise DeclinedError(f"{slot}: expected one of {', '.join(map(str, layouts))}")
    if delivery.base not in get_args(Base) or (delivery.base == "start" and slot not in starts):
        raise DeclinedError(f"{slot}: expected a stored row as its base, got {delivery.base!r:.40}")
    for addend in delivery.addends:
        shape, scales = tuple(addend.row.shape), len(addend.scale)
        if shape != (layout.numel,) or not addend.row.is_floating_point():
            raise DeclinedError(f"{slot}: expected a row of {layout.numel} floating-point numbers, got {shape}")
        if scales not in (1, len(layout.layers)):
            raise DeclinedError(f"{slot}: expected a scale of 1 number or {len(layout.layers)}, got {scales}")
        if not all(abs(scale) <= torch.finfo(torch.float32).max for scale in addend.scale):
            raise DeclinedError(f"{slot}: expected a finite scale, got NaN, infinite or too large values")


def divergence(losses: Mapping[str, float], parameters: Iterable[Tensor]) -> str:
    """What is not finite after training; empty if all is well. Waits for a GPU once."""
    bad = [f"the loss of {task!r} became {loss}" for task, loss in losses.items() if not isfinite(loss)]
    if not bad and not get_total_norm([parameter.detach() for parameter in parameters]).isfinite():
        bad = ["parameters became NaN or infinite"]
    return "; ".join(bad)


def check_lengths(sent: Mapping[Slot, Delivery], rows: Mapping[Slot, Tensor], longest: Callable[[Slot], float]) -> None:
    """Raise DeclinedError if rows cannot come from training or would not stay finite. Waits for a GPU once.

    The outcome depends only on what the server knows: the lengths of its own rows, and the client's initial values and
    steps.
    """
    if not rows:
        return
    addends = [addend.row for delivery in sent.values() for addend in delivery.addends]
    lengths = torch.stack([torch.linalg.vector_norm(row) for row in (*rows.values(), *addends)]).tolist()
    of_addends = iter(lengths[len(rows) :])
    for (slot, delivery), length in zip(sent.items(), lengths, strict=False):
        added = sum(max(map(abs, addend.scale)) * next(of_addends) for addend in delivery.addends)
        if not isfinite(added) or not isfinite(length):
            raise DeclinedError(f"{slot}: expected finite rows, got NaN, infinite or too large values")
        if added > (limit := longest(slot)):
            most = f"at most {limit:.4g} long, the most that training can do"
            raise DeclinedError(f"{slot}: expected rows {most}, got {added:.4g}")
