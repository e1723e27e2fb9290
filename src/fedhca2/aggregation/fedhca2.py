"""FedHCA²: the conflict-averse update of encoders, the attention of decoders, and the weights α and β it learns."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Mixing
from fedhca2.aggregation.common_update import CommonUpdate
from fedhca2.aggregation.means import cosines
from fedhca2.aggregation.rows import Measure, Member
from fedhca2.aggregation.solver import solve
from fedhca2.config import Config
from fedhca2.messages import Kind
from fedhca2.params import Layout


def conflict_averse_weights(gram: Tensor, c: float) -> Tensor:
    r"""Weights of the least-conflicting combination of updates, FedHCA² Eq. (7), from their Gram matrix [N, N].

    $$\min_{w \in \Delta_N} w^\top G b + c\,\lVert\bar\Delta\rVert \sqrt{w^\top G w}, \quad b = 1/N$$

    >>> conflict_averse_weights(torch.eye(2), c=0.4)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return torch.from_numpy(solve(gram.double().numpy(), c))


def conflict_averse_mixing(gram: Tensor, c: float, rescale: bool = True) -> Tensor:
    r"""Weights a of the update that is added, $\tilde U = \sum_i a_i \Delta_i$, FedHCA² Eq. (6) to (9), [N].

    $$a_i = \left(\tfrac1N + c\,\lVert\bar\Delta\rVert\, w_i / \lVert U_w \rVert\right) / (1 + c^2)$$

    Without `rescale`, the division by 1 + c² is left out; the released code has it and the paper does not. If 0 is in
    the convex hull of the updates, $U_w$ has no direction, and the mean is used.

    >>> conflict_averse_mixing(torch.eye(2), c=0.5)
    tensor([0.6000, 0.6000], dtype=torch.float64)
    """
    gram = gram.double()
    mean = torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
    w = conflict_averse_weights(gram, c)
    length = (w @ gram @ w).clamp(min=0).sqrt()
    if length <= 1e-6 * gram.diagonal().max().sqrt():
        return mean
    added = c * (mean @ gram @ mean).clamp(min=0).sqrt() / length
    return (mean + added * w) / (1 + c**2 if rescale else 1)


def conflict_averse(updates: Tensor, c: float, rescale: bool = True) -> Tensor:
    """The update that is added to every encoder, [D], from all clients' updates, [N, D]: FedHCA² Eq. (6) to (9).

    >>> conflict_averse(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), c=0.5)
    tensor([0.6000, 0.6000])
    """
    rows = updates.double()
    return (conflict_averse_mixing((rows @ rows.T).cpu(), c, rescale).to(rows) @ rows).to(updates.dtype)


class ConflictAverse(CommonUpdate):
    """FedHCA² for encoders: θ + Δ + α·Ũ, with the same Ũ for all and an α that each client learns."""

    kind: Literal["conflict_averse"] = "conflict_averse"
    c: float = Field(0.4, ge=0, lt=1, description="radius around the mean update, relative to its length")
    rescale: Literal["released", "none"] = Field("released", description="divide by 1 + c², or Eq. (9) as printed")
    alpha: float | None = Field(
        0.1, ge=0, le=1, description="initial value of the learned α; null: Ũ replaces the own update"
    )

    def weights(self, gram: Tensor) -> Tensor:
        """Weights of Ũ."""
        return conflict_averse_mixing(gram, self.c, self.rescale == "released")


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
    beta: float = Field(0.1, ge=0, le=1, description="initial value of every β")
    per: Literal["tensor", "layer"] = Field("tensor", description="weight and bias attend separately, or together")
    scale: Scale = Field("paper", description="products over √numel, or cosines")
    temperature: float = Field(1.0, gt=0, description="divides the logits")

    def first_weights(self, layout: Layout) -> tuple[float, ...]:
        """One β per layer."""
        return (self.beta,) * len(layout.layers)

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        r"""Every decoder's own $\tilde A_i = \sum_j A_{ij} \Delta_j$ with the attention A, FedHCA² Eq. (13), scaled."""
        sizes = torch.tensor(layout.sizes)
        if self.per == "layer":
            layer_of = torch.tensor(layout.layer_of)
            products = torch.zeros_like(products).index_add(0, layer_of, products)[layer_of]
            sizes = torch.zeros_like(sizes).index_add(0, layer_of, sizes)[layer_of]
        pairs = zip(products, sizes.tolist(), strict=True)
        weights = torch.stack([attention(gram, size, self.scale, self.temperature) for gram, size in pairs])
        return Mixing("trained", (Blend(weights, tuple(range(len(members))), hyper=True),))


@dataclass(frozen=True)
class Weights:
    """The learned weights of one slot of one client, and the momentum of each."""

    value: tuple[float, ...]
    momentum: tuple[float, ...]

    @classmethod
    def start(cls, value: Sequence[float]) -> "Weights":
        """Initial weights."""
        return cls(tuple(value), (0.0,) * len(value))

    @property
    def applied(self) -> tuple[float, ...]:
        """The values clamped to [0, 1], as they are applied."""
        return tuple(min(max(value, 0.0), 1.0) for value in self.value)


class HyperWeights(Config):
    """How α and β are learned: SGD on the agreement of a client's update with what it was sent."""

    lr: float = Field(0.01, ge=0, description="learning rate of α and β")
    momentum: float = Field(0.9, ge=0, lt=1, description="momentum of their SGD")
    weight_decay: float = Field(1e-4, ge=0, description="weight decay of their SGD")
    clamp: Literal["mask", "project"] = Field(
        "mask", description="values may leave [0, 1] and drift, or are kept inside"
    )
    learn: bool = Field(True, description="false keeps the initial α and β")

    def step(self, weights: Weights, agreement: Sequence[float]) -> Weights:
        r"""One step for weights w and agreement ⟨Ũ, Δ⟩ (per layer for β), FedHCA² Eq. (14) to (17).

        $$g = -\langle \tilde U, \Delta \rangle \cdot 1[0 \le w \le 1] + \lambda w, \quad m \leftarrow \mu m + g, \quad
        w \leftarrow w - \eta m$$

        >>> HyperWeights(weight_decay=0).step(Weights.start([0.1]), [1.0])
        Weights(value=(0.11,), momentum=(-1.0,))
        """
        if not self.learn:
            return weights
        pairs = [self._step(*each) for each in zip(weights.value, weights.momentum, agreement, strict=True)]
        return Weights(tuple(value for value, _ in pairs), tuple(momentum for _, momentum in pairs))

    def _step(self, value: float, momentum: float, agreement: float) -> tuple[float, float]:
        gradient = -agreement if 0 <= value <= 1 else 0.0
        momentum = self.momentum * momentum + gradient + self.weight_decay * value
        value -= self.lr * momentum
        if self.clamp == "project" and not 0 <= value <= 1:
            return min(max(value, 0.0), 1.0), 0.0
        return value, momentum
