"""Attention among rows: FedAMP's of whole models, and what FedHCA² adds to every decoder, tensor by tensor."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Measure, Member, Mixing
from fedhca2.aggregation.means import cosines
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


Scale = Literal["paper", "cosine"]


def attention(gram: Tensor, numel: int, scale: Scale = "paper", temperature: float = 1.0) -> Tensor:
    r"""Attention of each of K updates on all of them, [K, K], from their Gram matrix: FedHCA² Eq. (12).

    $$\mathrm{softmax}_j\left(\langle \Delta_i, \Delta_j \rangle / (T \sqrt{d})\right)$$

    With `scale="cosine"`, the logits are cosines over T, which do not depend on the updates' lengths.

    >>> attention(torch.zeros(2, 2), numel=4)
    tensor([[0.5000, 0.5000],
            [0.5000, 0.5000]], dtype=torch.float64)
    """
    logits = gram.double() / numel**0.5 if scale == "paper" else cosines(gram)
    return torch.softmax(logits / temperature, dim=1)


def cross_attention(updates: Tensor, scale: Scale = "paper", temperature: float = 1.0) -> Tensor:
    r"""What is added to each of K decoders for one tensor, [K, D] from [K, D]: FedHCA² Eq. (13).

    $$\tilde A_i = \sum_j A_{ij} \Delta_j$$

    >>> cross_attention(torch.tensor([[2.0], [2.0]]))
    tensor([[2.],
            [2.]])
    """
    rows = updates.double()
    weights = attention(rows @ rows.T, rows.shape[1], scale, temperature)
    return (weights @ rows).to(updates.dtype)


class CrossAttention(Aggregator):
    """FedHCA² for decoders: θ + Δ + β·Ã, with one β per layer that each decoder learns."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"

    kind: Literal["cross_attention"] = "cross_attention"
    beta: Annotated[float, Field(ge=0, le=1, description="initial value of every β")] = 0.1
    per: Annotated[Literal["tensor", "layer"], Field(description="weight and bias attend separately, or together")] = (
        "tensor"
    )
    scale: Annotated[Scale, Field(description="products over √numel, or cosines")] = "paper"
    temperature: Annotated[float, Field(gt=0, description="divides the logits")] = 1.0

    @property
    def learns(self) -> bool:
        """Always."""
        return True

    def first_weights(self, layout: Layout) -> tuple[float, ...]:
        """One β per layer."""
        return (self.beta,) * len(layout.layers)

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Every decoder's own Ã, scaled."""
        sizes = torch.tensor(layout.sizes)
        if self.per == "layer":
            layer_of = torch.tensor(layout.layer_of)
            products = torch.zeros_like(products).index_add(0, layer_of, products)[layer_of]
            sizes = torch.zeros_like(sizes).index_add(0, layer_of, sizes)[layer_of]
        pairs = zip(products, sizes.tolist(), strict=True)
        weights = torch.stack([attention(gram, size, self.scale, self.temperature) for gram, size in pairs])
        return Mixing("trained", (Blend(weights, tuple(range(len(members))), hyper=True),))
