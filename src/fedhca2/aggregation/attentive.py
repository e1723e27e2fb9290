"""FedAMP: every member gets its own mixture, in which closer models have larger weights."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Measure, Member, Mixing
from fedhca2.messages import Kind
from fedhca2.params import Layout


def attentive_weights(gram: Tensor, alpha: float = 1.0, sigma: float = 1.0) -> Tensor:
    r"""FedAMP's mixing weights, [N, N], from the Gram matrix of the models or of their differences from any point.

    $$\xi_{ij} = \frac\alpha\sigma \exp(-\lVert w_i - w_j \rVert^2 / \sigma), \quad
    u_i = (1 - \textstyle\sum_{j \ne i} \xi_{ij}) w_i + \sum_{j \ne i} \xi_{ij} w_j$$

    If a row of ξ sums to more than 1, as for equal models, it is divided by its sum: u must be a convex mixture.

    >>> attentive_weights(torch.zeros(3, 3))
    tensor([[0.0000, 0.5000, 0.5000],
            [0.5000, 0.0000, 0.5000],
            [0.5000, 0.5000, 0.0000]], dtype=torch.float64)
    """
    gram = gram.double()
    squares = gram.diagonal()
    distances = (squares[:, None] + squares - 2 * gram).clamp(min=0)
    xi = alpha / sigma * torch.exp(-distances / sigma)
    xi.fill_diagonal_(0)
    xi = xi / xi.sum(dim=1, keepdim=True).clamp(min=1)
    return xi + torch.diag(1 - xi.sum(dim=1))


class Attentive(Aggregator):
    """Every member's own convex mixture of all parameters."""

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "differences"
    whole: ClassVar[bool] = True

    kind: Literal["attentive"] = "attentive"
    alpha: Annotated[float, Field(gt=0, description="α_k, the step towards the others")] = 1.0
    sigma: Annotated[float, Field(gt=0, description="squared distance at which a model's weight falls to 1/e")] = 1.0

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per member."""
        weights = attentive_weights(products.sum(dim=0), self.alpha, self.sigma)
        return Mixing("nothing", (Blend(weights, tuple(range(len(members)))),))
