"""The conflict-averse direction that FedHCA² adds to every encoder."""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.common_update import CommonUpdate
from fedhca2.aggregation.solver import solve

# A combination shorter than this share of the longest update has no direction: 0 is in the updates' convex hull.
SHORTEST = 1e-6


def conflict_averse_weights(gram: Tensor, c: float) -> Tensor:
    r"""Weights of the least-conflicting combination of updates, FedHCA² Eq. (7), from their Gram matrix [N, N].

    $$\min_{w \in \Delta_N} w^\top G b + c\,\lVert\bar\Delta\rVert \sqrt{w^\top G w}, \quad b = 1/N$$

    >>> conflict_averse_weights(torch.eye(2), c=0.4)
    tensor([0.5000, 0.5000], dtype=torch.float64)
    """
    return torch.from_numpy(solve(gram.double().numpy(), c))


def conflict_averse_mixing(gram: Tensor, c: float, rescale: bool = True) -> Tensor:
    r"""Weights a of the update that is added, $\tilde U = \sum_i a_i \Delta_i$, FedHCA² Eq. (9), [N].

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
    if length <= SHORTEST * gram.diagonal().max().sqrt():
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
    c: Annotated[float, Field(ge=0, lt=1, description="radius around the mean update, relative to its length")] = 0.4
    rescale: Annotated[Literal["released", "none"], Field(description="divide by 1 + c², or Eq. (9) as printed")] = (
        "released"
    )
    alpha: Annotated[
        float | None,
        Field(ge=0, le=1, description="initial value of the learned α; null: Ũ replaces the own update"),
    ] = 0.1

    def weights(self, gram: Tensor) -> Tensor:
        """Weights of Ũ."""
        return conflict_averse_mixing(gram, self.c, self.rescale == "released")
