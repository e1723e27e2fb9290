"""What a method adds to local training, to the tasks' own losses: one class for each kind."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.config import Config
from fedhca2.messages import Delivery
from fedhca2.params import Part

Anchor = Literal["none", "start", "received"]
Kept = Mapping[str, Tensor]  # what a client keeps of a shared slot between rounds, by name; empty at first
ENCODER: frozenset[Part] = frozenset({"encoder", "encoder_norms"})
DECODER_AND_HEAD: frozenset[Part] = frozenset({"decoder", "decoder_norms", "head"})


@dataclass(frozen=True)
class Epoch:
    """A pass over a client's images, or a part of one.

    `number` counts passes in the schedule. `draw` seeds the batches, of which this is a `part`. `frozen` do not train.
    """

    number: int
    draw: int
    frozen: frozenset[Part]
    part: range


def parts_of_epochs(first: int, steps: int, batches: int) -> list[tuple[int, range]]:
    """Divide the steps from the `first` on by epochs of `batches` each: an epoch's number, and which of its batches.

    >>> parts_of_epochs(2, 5, 3)
    [(0, range(2, 3)), (1, range(0, 3)), (2, range(0, 1))]
    """
    end = first + steps
    return [
        (number, range(max(first - number * batches, 0), min(end - number * batches, batches)))
        for number in range(first // batches, -(-end // batches))
    ]


class Objective(Config):
    """What a method adds to local training: nothing. Other objectives derive from it and set class variables.

    - `anchor`: the target of a pull: the shared model, or rows of the server that do not replace the client's own.
    - `own_copy`: the client trains a copy for the server, and a personal model that is never overwritten.
    - `frozen`: parts that do not train before the last round, and are the same for all clients of a task.
    - `keeps`: clients keep rows of each shared slot for `take`, `learn`, `drift` and `shift`; they send updates.
    """

    anchor: ClassVar[Anchor] = "none"
    own_copy: ClassVar[bool] = False
    keeps: ClassVar[bool] = False
    frozen: ClassVar[frozenset[Part]] = frozenset()
    in_one_place: ClassVar[bool] = False  # it needs the data of all clients in one process

    kind: str = "plain"
    final_epochs: int = Field(
        0, ge=0, description="epochs for which each client fine-tunes its whole model after the last round"
    )

    @property
    def replaces(self) -> bool:
        """Whether the server's rows replace the client's own."""
        return self.anchor != "received" or self.own_copy

    @property
    def pull(self) -> float:
        """Strength s of the added term (s/2)·‖θ − anchor‖² over encoder and decoders."""
        return 0.0

    def epochs(self, round: int, steps: int, batches: int) -> list[Epoch]:
        """List the epochs of a round, in order, for a client that takes `steps` in it and has `batches` in an epoch."""
        parts = parts_of_epochs(round * steps, steps, batches)
        return [Epoch(number, number, self.frozen, part) for number, part in parts]

    def take(self, kept: Kept, row: Tensor, delivery: Delivery) -> tuple[Tensor, Kept]:
        """A slot's next value, and what to keep, from the value `row` that the server's delivery leads to."""
        return row, kept

    def learn(self, kept: Kept, update: Tensor, steps: int, rate: float) -> Kept:
        """What to keep after training that gave this update in so many steps, at this mean learning rate."""
        return kept

    def drift(self, kept: Kept) -> Tensor | None:
        """What every step subtracts from a slot in addition to its own, times the learning rate; None for nothing."""
        return None

    def shift(self, kept: Kept) -> Tensor | None:
        """What is added to a slot's anchor; None for nothing."""
        return None


class Proximal(Objective):
    """FedProx: loss + (μ/2)·‖θ − θ_received‖² over encoder and decoders."""

    anchor: ClassVar[Anchor] = "start"

    kind: Literal["proximal"] = "proximal"
    mu: float = Field(0.01, ge=0, description="strength of the pull towards the received model")

    @property
    def pull(self) -> float:
        """μ."""
        return self.mu


class PersonalCopy(Objective):
    """Ditto: a copy w trains as in FedAvg; the personal model v, which counts, has loss + (λ/2)·‖v − w_received‖²."""

    anchor: ClassVar[Anchor] = "start"
    own_copy: ClassVar[bool] = True

    kind: Literal["personal_copy"] = "personal_copy"
    lam: float = Field(0.1, ge=0, description="λ, the pull of the personal model towards the shared one")

    @property
    def pull(self) -> float:
        """λ."""
        return self.lam


class Attracted(Objective):
    """FedAMP: loss + (λ/2α)·‖w − u‖², where u is what the server sent; w itself is not replaced."""

    anchor: ClassVar[Anchor] = "received"

    kind: Literal["attracted"] = "attracted"
    lam: float = Field(1.0, ge=0, description="λ, strength of the regulariser")
    alpha: float = Field(1.0, gt=0, description="α_k, the step of the server's attention")

    @property
    def pull(self) -> float:
        """λ/α."""
        return self.lam / self.alpha


class Frozen(Objective):
    """FedBABU: decoders and heads keep their initial values, shared by all clients of a task, until a last fine-tuning.

    The running statistics of their normalisation do not change either. The fine-tuning trains the whole model.
    """

    frozen: ClassVar[frozenset[Part]] = DECODER_AND_HEAD

    kind: Literal["frozen"] = "frozen"
    final_epochs: int = Field(5, ge=0, description="epochs on the whole model after the last round")


class HeadsFirst(Objective):
    """FedRep: each round first trains decoders and heads with the encoder frozen, then the encoder with them frozen."""

    kind: Literal["heads_first"] = "heads_first"
    head_epochs: int = Field(
        1, ge=1, description="epochs, or shorter rounds, of decoders and heads at the start of a round"
    )

    def epochs(self, round: int, steps: int, batches: int) -> list[Epoch]:
        """Epochs of heads use the rate of the round's first epoch, and batches of their own."""
        rate, first = round * steps // batches, self.head_epochs * min(steps, batches)
        heads = [Epoch(rate, -1 - each, ENCODER, part) for each, part in parts_of_epochs(round * first, first, batches)]
        return heads + [replace(epoch, frozen=DECODER_AND_HEAD) for epoch in super().epochs(round, steps, batches)]


class Longer(Objective):
    """Local training with as many steps for each client as all of them take together; the schedule is stretched."""

    in_one_place: ClassVar[bool] = True

    kind: Literal["longer"] = "longer"


class Pooled(Objective):
    """The ceiling: clients train one model on batches with images of all, as if their data were in one place."""

    in_one_place: ClassVar[bool] = True

    kind: Literal["pooled"] = "pooled"
    clients: int | None = Field(
        None, ge=1, description="clients whose images are together in a batch; null: all; 1: they take turns"
    )
    balanced: bool = Field(True, description="give all clients' gradients of an encoder the same length in a step")
    final_epochs: Literal[0] = Field(0, description="none: the model is one for all")


class ControlVariate(Objective):
    r"""SCAFFOLD: every step is corrected by how far the client's mean direction $c_i$ is from that of all, c.

    $$y \leftarrow y - \eta\,(\text{step} + c - c_i),\qquad c_i \leftarrow c_i - c - \Delta_i / (K\eta)$$

    c is minus the mean update per step over η, which the client gets anyway. For SGD without momentum this adds
    c − c_i to the gradient.
    """

    keeps: ClassVar[bool] = True

    kind: Literal["control_variate"] = "control_variate"
    share: float = Field(
        1.0, gt=0, le=1, description="ρ, how much of c a round replaces: the share of clients in a round"
    )

    def take(self, kept: Kept, row: Tensor, delivery: Delivery) -> tuple[Tensor, Kept]:
        """Keep c; the row is the server's."""
        if "rate" not in kept:
            return row, kept
        new = -delivery.addends[0].row / kept["rate"]
        return row, {**kept, "all": self.share * new + (1 - self.share) * kept.get("all", torch.zeros_like(new))}

    def learn(self, kept: Kept, update: Tensor, steps: int, rate: float) -> Kept:
        """Keep c_i, and the rate with which the mean update per step becomes c."""
        if not rate:
            return kept
        nothing = torch.zeros_like(update)
        own = kept.get("own", nothing) - kept.get("all", nothing) - update / (steps * rate)
        return {**kept, "own": own, "rate": torch.full((1,), rate, device=update.device)}

    def drift(self, kept: Kept) -> Tensor | None:
        """c − c_i."""
        return kept["all"] - kept["own"] if {"all", "own"} <= kept.keys() else None


class Dynamic(Objective):
    r"""FedDyn: loss + (α/2)·‖θ − (θ_received − λ_i)‖², where λ_i is the sum of all updates of this client.

    $$\bar\lambda \leftarrow \bar\lambda + \bar\Delta,\qquad
    \theta_\text{next} = \theta_\text{start} + \bar\Delta + \bar\lambda$$

    All clients get the same mean update, so each can keep the mean λ by itself.
    """

    anchor: ClassVar[Anchor] = "start"
    keeps: ClassVar[bool] = True

    kind: Literal["dynamic"] = "dynamic"
    strength: float = Field(0.1, gt=0, description="α of the regulariser")

    @property
    def pull(self) -> float:
        """α."""
        return self.strength

    def take(self, kept: Kept, row: Tensor, delivery: Delivery) -> tuple[Tensor, Kept]:
        """Add the mean λ."""
        [addend] = delivery.addends
        mean = addend.row * addend.scale[0]
        total = kept["all"] + mean if "all" in kept else mean
        return row + total, {**kept, "all": total}

    def learn(self, kept: Kept, update: Tensor, steps: int, rate: float) -> Kept:
        """Keep λ_i."""
        return {**kept, "own": kept["own"] + update if "own" in kept else update}

    def shift(self, kept: Kept) -> Tensor | None:
        """Minus λ_i."""
        return -kept["own"] if "own" in kept else None


def squared_distance(values: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """Σ‖value − anchor‖², differentiable in the values.

    >>> squared_distance([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 0.0])])
    tensor(5.)
    """
    pairs = zip(values, anchors, strict=True)
    return torch.stack([(value - anchor.detach()).square().sum() for value, anchor in pairs]).sum()


@torch.no_grad()
def add_pull(values: Sequence[Tensor], anchors: Sequence[Tensor], pull: float) -> None:
    """Add the gradient of (pull/2)·Σ‖value − anchor‖² to that of the values that are trained.

    The same numbers as those of `squared_distance`, without the graph of its gradient.
    """
    for value, anchor in zip(values, anchors, strict=True):
        if value.requires_grad:
            added = (value - anchor).mul_(pull)
            value.grad = added if value.grad is None else value.grad.add_(added)
