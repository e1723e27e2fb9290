"""One update for all encoders, and FedHCA²'s: the conflict-averse direction."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Measure, Member, Mixing, weights_fault
from fedhca2.aggregation.means import group_weights
from fedhca2.aggregation.solver import solve
from fedhca2.errors import UserError
from fedhca2.messages import Kind
from fedhca2.params import Layout

if TYPE_CHECKING:
    from fedhca2.aggregation.rows import Rows

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


class CommonUpdate(Aggregator):
    """One update for all, U = Σ w_i·Δ_i, in place of a client's own, or added to it with a learned share α."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"
    whole: ClassVar[bool] = True

    alpha: Annotated[
        float | None,
        Field(ge=0, le=1, description="initial value of the learned share α; null: U replaces the client's own update"),
    ] = None
    groups: Annotated[
        bool, Field(description="with α: clients with the same data set and tasks continue from their mean update")
    ] = False
    across: Annotated[Literal["clients", "groups"], Field(description="weights for clients, or for groups' means")] = (
        "clients"
    )
    length: Annotated[Literal["own", "mean"], Field(description="length of U: its own, or that of the mean update")] = (
        "own"
    )
    rate: Annotated[float, Field(gt=0, description="factor of U")] = 1.0
    sketch: Annotated[
        int | None,
        Field(ge=1024, le=2**20, description="estimate inner products from this many random sums of each update"),
    ] = None
    memory: Annotated[
        float, Field(ge=0, lt=1, description="share of past rounds in a moving average of the weights")
    ] = 0.0

    @abstractmethod
    def weights(self, gram: Tensor) -> Tensor:
        """Compute the weights w, [N], from the Gram matrix of the updates, [N, N]."""

    @property
    def learns(self) -> bool:
        """Whether there is an α."""
        return self.alpha is not None

    @property
    def reveals_rows(self) -> str:
        """Group means put a row in a second sum."""
        return super().reveals_rows if self.groups and self.learns else ""

    def first_weights(self, layout: Layout) -> tuple[float, ...]:
        """One α, or none."""
        return () if self.alpha is None else (self.alpha,)

    def products(self, rows: "Rows", round: int) -> Tensor:
        """Exact, or estimated by another random projection in every round."""
        return rows.estimated_products(self.sketch, round) if self.sketch else super().products(rows, round)

    def _weights(self, gram: Tensor) -> Tensor:
        """Compute the weights; raises UserError if they do not fit."""
        weights = self.weights(gram)
        if fault := weights_fault(weights, len(gram)):
            raise UserError([fault])
        return weights

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Give all U, times α if there is one; with `groups` the group's mean update replaces the client's own."""
        gram = products.sum(dim=0)
        means, gets = group_weights([member.group for member in members])
        weights = self._weights(means @ gram @ means.T) @ means if self.across == "groups" else self._weights(gram)
        weights, kept = self._averaged(weights, members)
        added = Blend((self._scale(weights, gram) * weights)[None], (0,) * len(members), hyper=self.learns)
        if not self.learns:
            return Mixing("start", (added,), keeps=kept)
        if not self.groups:
            return Mixing("trained", (added,), keeps=kept)
        return Mixing("start", (Blend(means, gets), added), keeps=kept)

    def _averaged(self, weights: Tensor, members: Sequence[Member]) -> tuple[Tensor, tuple[float, ...]]:
        """Average over rounds (CR-MOGM): of N·w, since N differs between rounds. Also returns what to keep."""
        if not self.memory:
            return weights, ()
        new = (len(members) * weights).tolist()
        past = [value if member.kept is None else member.kept for value, member in zip(new, members, strict=True)]
        kept = tuple(self.memory * old + (1 - self.memory) * now for old, now in zip(past, new, strict=True))
        return torch.tensor(kept, dtype=torch.float64) / len(members), kept

    def _scale(self, weights: Tensor, gram: Tensor) -> float:
        if self.length == "own":
            return self.rate
        length = float((weights @ gram @ weights).clamp(min=0).sqrt())
        return self.rate * float(gram.mean().clamp(min=0).sqrt()) / length if length else self.rate


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
