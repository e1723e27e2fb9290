"""What a method adds to local training besides the tasks' own losses: one class for each kind."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.config import Config
from fedhca2.params import Part

Anchor = Literal["none", "start", "received"]
ENCODER: frozenset[Part] = frozenset({"encoder", "encoder_norms"})
DECODER_AND_HEAD: frozenset[Part] = frozenset({"decoder", "decoder_norms", "head"})


@dataclass(frozen=True)
class Epoch:
    """One pass over a client's images: its number in the schedule, the number that seeds its batches, frozen parts."""

    number: int
    draw: int
    frozen: frozenset[Part]


class Objective(Config):
    """Plain local training, and the base class of all other kinds.

    `anchor` is the target of the pull: the shared model at the start of the round, or the rows that the server sent
    (which then do not replace the client's own). With `own_copy`, the client trains a copy that the server aggregates,
    and a personal model that is never overwritten. `frozen` parts do not train before the last round, and are the same
    for all clients of a task.
    """

    anchor: ClassVar[Anchor] = "none"
    own_copy: ClassVar[bool] = False
    frozen: ClassVar[frozenset[Part]] = frozenset()

    kind: str = "plain"

    @property
    def replaces(self) -> bool:
        """Whether the server's rows replace the client's own."""
        return self.anchor != "received" or self.own_copy

    @property
    def pull(self) -> float:
        """Strength s of the added term (s/2)·‖θ − anchor‖² over encoder and decoders."""
        return 0.0

    @property
    def final_epochs(self) -> int:
        """Epochs for which each client fine-tunes its whole model after the last round."""
        return 0

    def epochs(self, round: int, count: int) -> list[Epoch]:
        """List the epochs of a round, in order, for a client with `count` epochs per round."""
        return [Epoch(number, number, self.frozen) for number in range(round * count, (round + 1) * count)]


class Proximal(Objective):
    """FedProx: loss + (μ/2)·‖θ − θ_received‖² over encoder and decoders."""

    anchor: ClassVar[Anchor] = "start"

    kind: Literal["proximal"] = "proximal"
    mu: Annotated[float, Field(ge=0, description="strength of the pull towards the received model")] = 0.01

    @property
    def pull(self) -> float:
        """μ."""
        return self.mu


class PersonalCopy(Objective):
    """Ditto: a copy w trains as in FedAvg; the personal model v, which counts, has loss + (λ/2)·‖v − w_received‖²."""

    anchor: ClassVar[Anchor] = "start"
    own_copy: ClassVar[bool] = True

    kind: Literal["personal_copy"] = "personal_copy"
    lam: Annotated[float, Field(ge=0, description="λ, the pull of the personal model towards the shared one")] = 0.1

    @property
    def pull(self) -> float:
        """λ."""
        return self.lam


class Attracted(Objective):
    """FedAMP: loss + (λ/2α)·‖w − u‖², where u is what the server sent; w itself is not replaced."""

    anchor: ClassVar[Anchor] = "received"

    kind: Literal["attracted"] = "attracted"
    lam: Annotated[float, Field(ge=0, description="λ, strength of the regulariser")] = 1.0
    alpha: Annotated[float, Field(gt=0, description="α_k, the step of the server's attention")] = 1.0

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
    fine_tune_epochs: Annotated[int, Field(ge=0, description="epochs on the whole model after the last round")] = 5

    @property
    def final_epochs(self) -> int:
        """The epochs of fine-tuning."""
        return self.fine_tune_epochs


class HeadsFirst(Objective):
    """FedRep: each round first trains decoders and heads with the encoder frozen, then the encoder with them frozen."""

    kind: Literal["heads_first"] = "heads_first"
    head_epochs: Annotated[int, Field(ge=1, description="epochs of decoders and heads at the start of a round")] = 1

    def epochs(self, round: int, count: int) -> list[Epoch]:
        """Epochs of heads use the rate of the round's first epoch, and batches of their own."""
        first = -1 - round * self.head_epochs
        heads = [Epoch(round * count, first - each, ENCODER) for each in range(self.head_epochs)]
        return heads + [replace(epoch, frozen=DECODER_AND_HEAD) for epoch in super().epochs(round, count)]


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
