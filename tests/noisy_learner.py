"""A client that learns by Adam from noisy gradients, towards an optimum of its own that is near the others'."""

from collections.abc import Mapping, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from array_client import ArrayClient
from fedhca2.clients.training import BETAS
from fedhca2.messages import Profile, Reply
from fedhca2.methods import Method
from fedhca2.params import Layout, Slot
from fedhca2.seeds import derive

STEPS, RATE = 10, 0.02  # of a round
LAYOUTS = {
    "encoder": Layout(("stem.weight", "block.weight", "block.bias"), ((4, 8), (8, 8), (8,))),
    "decoder": Layout(("fuse.weight", "norm.weight"), ((8, 8), (8,))),
    "decoder_norms": Layout(("norm.running_mean", "norm.running_var"), ((8,), (8,))),
    "head": Layout(("last.weight",), ((2, 8),)),
}
DESCENDED: dict[tuple[object, ...], Tensor] = {}  # rows after training, by client, slot, round and what they were


@cache
def draw(count: int, *seed: str | int | Slot) -> Tensor:
    """Normal numbers that depend only on the seed."""
    return torch.randn(count, generator=torch.Generator().manual_seed(derive(*map(str, seed))))


def slots_of(tasks: Sequence[str]) -> list[Slot]:
    return [Slot("encoder"), *(Slot(part, task) for part in LAYOUTS if part != "encoder" for task in tasks)]


class Learner(ArrayClient):
    """Trains according to its method's objective: towards its own optimum, and towards its anchor."""

    def __init__(self, name: str, tasks: tuple[str, ...], method: Method) -> None:
        slots = slots_of(tasks)
        profile = Profile(name, "outdoor", tasks, STEPS, {slot: LAYOUTS[slot.part] for slot in slots})
        rows = {slot: draw(LAYOUTS[slot.part].numel, slot, name if slot.task else "") for slot in slots}
        rows |= {slot: torch.cat([torch.zeros(8), torch.ones(8)]) for slot in slots if slot.part == "decoder_norms"}
        super().__init__(profile, rows)
        self.objective = method.local
        self.optimum = {
            slot: row + 0.5 * draw(len(row), "all", slot) + 0.2 * draw(len(row), "own", name, slot)
            for slot, row in rows.items()
        }
        self.personal = rows
        self.received: Mapping[Slot, Tensor] = {}

    def answer(self, round: int, uploads: Mapping[str, str]) -> Reply:
        """One round of training."""
        start, anchor = self.rows, self.received if self.objective.anchor == "received" else self.rows
        own = self.personal if self.objective.own_copy else start
        self.personal = self._trained(own, round, anchor if self.objective.anchor != "none" else {})
        shared = self._trained(start, round, {}) if self.objective.own_copy else self.personal
        return self.train(round, {slot: shared[slot] - row for slot, row in start.items()}, uploads)

    def receive(self, deliveries) -> None:
        own = self.rows
        super().receive(deliveries)
        if not self.objective.replaces:
            self.received, self.rows = {slot: self.rows[slot] for slot in deliveries}, own

    def _trained(self, rows: Mapping[Slot, Tensor], round: int, anchors: Mapping[Slot, Tensor]) -> dict[Slot, Tensor]:
        """The rows after the steps of a round; running statistics approach those of its own features."""
        trained = {}
        for slot, row in rows.items():
            if slot.part in self.objective.frozen:
                trained[slot] = row
            elif slot.part == "decoder_norms":
                trained[slot] = torch.lerp(row, self.optimum[slot].abs(), 1 - 0.9**STEPS)
            else:
                trained[slot] = self._descended(slot, row, round, anchors.get(slot))
        return trained

    def _descended(self, slot: Slot, row: Tensor, round: int, anchor: Tensor | None) -> Tensor:
        """The row after a round; whoever trains from the same values again, as in many cells, gets the same row."""
        contents = row.numpy().tobytes(), None if anchor is None else anchor.numpy().tobytes()
        key = self.profile.client, slot, round, self.objective.pull if contents[1] else 0.0, *contents
        if key not in DESCENDED:
            DESCENDED[key] = self._descend(slot, row, round, anchor)
        return DESCENDED[key]

    @np.errstate(over="ignore", invalid="ignore")  # whoever holds 1e30 has lost its model
    def _descend(self, slot: Slot, row: Tensor, round: int, anchor: Tensor | None) -> Tensor:
        """Adam's steps down |θ − optimum|²/2, and the pull to an anchor, with noisy gradients."""
        noise = draw(STEPS * len(row), "noise", self.profile.client, slot, round).view(STEPS, -1).numpy()
        row, optimum = row.numpy(), self.optimum[slot].numpy()  # a tenth of torch's time for so few values
        first = second = np.zeros_like(row)
        for step in range(STEPS):
            gradient = row - optimum + noise[step]
            if anchor is not None:
                gradient = gradient + self.objective.pull * (row - anchor.numpy())
            first = BETAS[0] * first + (1 - BETAS[0]) * gradient
            second = BETAS[1] * second + (1 - BETAS[1]) * gradient**2
            scale = np.sqrt(second / (1 - BETAS[1] ** (step + 1))) + 1e-8
            row = row - RATE * first / (1 - BETAS[0] ** (step + 1)) / scale
        return torch.from_numpy(row)

    @property
    def model(self) -> Mapping[Slot, Tensor]:
        """Its final model: the personal one, if there is one."""
        return self.personal if self.objective.own_copy else self.rows

    @property
    def loss(self) -> float:
        parameters = [slot for slot in self.model if slot.part != "decoder_norms"]
        return sum(float((self.model[slot] - self.optimum[slot]).double().square().sum()) / 2 for slot in parameters)
