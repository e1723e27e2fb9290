"""Share first, specialise later: fedpull's mean of all, which gives way to the mean of a member's own kind."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Measure, Member, Mixing
from fedhca2.aggregation.grouped import group_weights
from fedhca2.messages import Kind
from fedhca2.params import Layout


def pull_weights(groups: Sequence[str], gamma: float) -> tuple[Tensor, tuple[int, ...]]:
    r"""Weights of $m_g + \gamma (\bar\theta - m_g)$ for the mean $m_g$ of each group, [M, N], and which a member gets.

    >>> pull_weights(["a", "b"], gamma=0.5)
    (tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]], dtype=torch.float64), (0, 1))
    """
    means, gets = group_weights(groups)
    return (1 - gamma) * means + gamma / len(groups), gets


class Pull(Aggregator):
    """Members move from their group's mean towards the mean of all, less in every round and soon no more."""

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "nothing"

    kind: Literal["pull"] = "pull"
    gamma: Annotated[
        float, Field(ge=0, le=1, description="share of the way to the mean of all, in the first round")
    ] = 1
    until: Annotated[
        float, Field(ge=0, le=1, description="part of the rounds in which that share falls to 0, in equal steps")
    ] = 0.375

    def at(self, done: float) -> Self:
        """The share that is left after this part of the rounds."""
        left = max(0.0, 1 - done / self.until) if self.until else 0.0
        return self.model_copy(update={"gamma": self.gamma * left})

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """One row for each group."""
        weights, gets = pull_weights([member.group for member in members], self.gamma)
        return Mixing("nothing", (Blend(weights, gets),))
