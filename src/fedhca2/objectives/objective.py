"""What a method asks of local training beside the tasks' own losses."""

from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from torch import Tensor

from fedhca2.config import Config
from fedhca2.params import Part

Anchor = Literal["none", "start", "received"]


class Objective(Config):
    """Plain local training, and the base of every other kind.

    `anchor` says what the pull is towards: the shared model at the start of the round, or the rows that the server sent
    (which then do not replace the client's own). With `own_copy` the client trains a copy that the server aggregates,
    beside a personal model that is never overwritten. Parts that are `frozen` do not train before the last round; all
    clients with the same task start with the same.
    """

    anchor: ClassVar[Anchor] = "none"
    own_copy: ClassVar[bool] = False
    frozen: ClassVar[frozenset[Part]] = frozenset()

    kind: str = "plain"

    @property
    def replaces(self) -> bool:
        """Whether what the server sends takes the place of the client's own rows."""
        return self.anchor != "received" or self.own_copy

    @property
    def pull(self) -> float:
        """Strength s of the added term (s/2)·‖θ − anchor‖² over encoder and decoders."""
        return 0.0

    @property
    def final_epochs(self) -> int:
        """Epochs that each client fine-tunes its whole model for after the last round."""
        return 0


def squared_distance(values: Sequence[Tensor], anchors: Sequence[Tensor]) -> Tensor:
    """Σ‖value − anchor‖², differentiable in the values.

    >>> squared_distance([torch.tensor([1.0, 2.0])], [torch.tensor([0.0, 0.0])])
    tensor(5.)
    """
    differences = torch._foreach_sub(list(values), [anchor.detach() for anchor in anchors])
    return torch.stack([difference.square().sum() for difference in differences]).sum()
