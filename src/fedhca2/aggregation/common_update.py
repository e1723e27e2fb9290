"""One update for all encoders: the base class, FedExP, and robust ones that a few hostile clients cannot move far."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar, Literal

import torch
from pydantic import Field, field_validator
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Mixing, check_weights
from fedhca2.aggregation.means import group_weights
from fedhca2.aggregation.rows import Measure, Member, Rows
from fedhca2.messages import Kind
from fedhca2.params import Layout


class CommonUpdate(Aggregator):
    """One update for all, U = Σ w_i·Δ_i, in place of a client's own, or added to it with a learned share α."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"
    whole: ClassVar[bool] = True

    alpha: float | None = Field(
        None, ge=0, le=1, description="initial value of the learned share α; null: U replaces the client's own update"
    )
    groups: bool = Field(
        False, description="with α: clients with the same data set and tasks continue from their mean update"
    )
    across: Literal["clients", "groups"] = Field("clients", description="weights for clients, or for groups' means")
    length: Literal["own", "mean"] = Field("own", description="length of U: its own, or that of the mean update")
    rate: float = Field(1.0, gt=0, description="factor of U")
    sketch: int | None = Field(
        None, ge=1024, le=2**20, description="estimate inner products from this many random sums of each update"
    )
    memory: float = Field(0.0, ge=0, lt=1, description="share of past rounds in a moving average of the weights")

    @abstractmethod
    def weights(self, gram: Tensor) -> Tensor:
        """Compute the weights w, [N], from the Gram matrix of the updates, [N, N]."""

    @property
    def reveals_rows(self) -> str | None:
        """Group means put a row in a second sum."""
        return super().reveals_rows if self.groups and self.learns else None

    def first_weights(self, layout: Layout) -> tuple[float, ...]:
        """One α, or none."""
        return () if self.alpha is None else (self.alpha,)

    def products(self, rows: Rows, round: int) -> Tensor:
        """Exact, or estimated by another random projection in every round."""
        return rows.estimated_products(self.sketch, round) if self.sketch else super().products(rows, round)

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Give all U, times α if there is one; with `groups` the group's mean update replaces the client's own."""
        gram = products.sum(dim=0)
        means, gets = group_weights([member.group for member in members])
        compared = means @ gram @ means.T if self.across == "groups" else gram
        weights = check_weights(self.weights(compared), len(compared))
        weights, kept = self._average(weights @ means if self.across == "groups" else weights, members)
        scale, length = self.rate, float((weights @ gram @ weights).clamp(min=0).sqrt())
        if self.length == "mean" and length:
            scale = self.rate * float(gram.mean().clamp(min=0).sqrt()) / length
        added = Blend((scale * weights)[None], (0,) * len(members), hyper=self.learns)
        if not self.learns:
            return Mixing("start", (added,), keeps=kept)
        if not self.groups:
            return Mixing("trained", (added,), keeps=kept)
        return Mixing("start", (Blend(means, gets), added), keeps=kept)

    def _average(self, weights: Tensor, members: Sequence[Member]) -> tuple[Tensor, tuple[float, ...]]:
        """Average over rounds (CR-MOGM): of N·w, since N differs between rounds. Also returns what to keep."""
        if not self.memory:
            return weights, ()
        new = (len(members) * weights).tolist()
        past = [value if member.kept is None else member.kept for value, member in zip(new, members, strict=True)]
        kept = tuple(self.memory * old + (1 - self.memory) * now for old, now in zip(past, new, strict=True))
        return torch.tensor(kept, dtype=torch.float64) / len(members), kept


class Extrapolated(CommonUpdate):
    """FedExP: the mean update, and the more of it the less the updates agree."""

    kind: Literal["extrapolated"] = "extrapolated"

    def weights(self, gram: Tensor) -> Tensor:
        r"""Equal weights η/N: $\eta = \sum_i \lVert\Delta_i\rVert^2 / 2N\lVert\bar\Delta\rVert^2$, but from 1 to N."""
        gram, count = gram.double(), len(gram)
        squares, of_mean = float(gram.diagonal().mean()), float(gram.mean())
        eta = min(max(1.0, squares / (2 * of_mean)), float(count)) if of_mean > 0 else 1.0
        return torch.full((count,), eta / count, dtype=torch.float64)


def squared_distances(gram: Tensor, weights: Tensor) -> Tensor:
    r"""Squared distances of N updates from M weighted sums of them, [M, N], from the weights of the sums, [M, N].

    >>> squared_distances(torch.eye(2), torch.eye(2))
    tensor([[0., 2.],
            [2., 0.]])
    """
    products = weights @ gram
    return (gram.diagonal() - 2 * products + (products * weights).sum(dim=1, keepdim=True)).clamp(min=0)


def krum(gram: Tensor, hostile: int, chosen: int) -> Tensor:
    r"""Weights of the mean of the `chosen` updates nearest to their neighbours (Blanchard et al. 2017).

    An update's score is the sum of its squared distances to the N − f − 2 nearest others, where f is `hostile`, or to
    the nearest one if there are too few. Updates with equal scores share their places.

    >>> krum(torch.tensor([[1.0, 1.0, -9.0], [1.0, 1.0, -9.0], [-9.0, -9.0, 81.0]]), hostile=1, chosen=1)
    tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    gram = gram.double()
    n = len(gram)
    if n == 1:
        return torch.ones(1, dtype=torch.float64)
    distances = squared_distances(gram, torch.eye(n, dtype=torch.float64)).fill_diagonal_(torch.inf)
    distances = (distances + distances.T) / 2
    neighbours = min(max(n - hostile - 2, 1), n - 1)
    scores = distances.topk(neighbours, largest=False).values.sum(dim=1)
    last = scores.sort().values[min(chosen, n) - 1]
    near = torch.isclose(scores, last, rtol=1e-9, atol=0).double()
    sure = (scores < last).double() * (1 - near)
    return (sure + near * (min(chosen, n) - sure.sum()) / near.sum()) / min(chosen, n)


def geometric_median(gram: Tensor) -> Tensor:
    r"""Weights of the point with the least sum of distances to all updates (Pillutla et al. 2022).

    Weiszfeld's iteration, smoothed, from the point 0 until w stays the same:
    $$w_i \propto 1 / \max(\nu, \lVert \Delta_i - \textstyle\sum_j w_j \Delta_j \rVert)$$

    >>> geometric_median(torch.tensor([[1.0, 1.0, 9.0], [1.0, 1.0, 9.0], [9.0, 9.0, 81.0]])).round(decimals=3)
    tensor([0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    gram = gram.double()
    lengths = gram.diagonal().clamp(min=0).sqrt()
    smallest = 1e-6 * float(lengths.median()) or torch.finfo(torch.float64).tiny
    weights = torch.zeros(len(gram), dtype=torch.float64)
    for _ in range(1000):
        near = 1 / squared_distances(gram, weights[None])[0].sqrt().clamp(min=smallest)
        new = near / near.sum()
        done = bool((new - weights).abs().max() <= 1e-10)
        weights = new
        if done:
            break
    return weights


def clipped_mean(gram: Tensor, bound: float) -> Tensor:
    r"""Weights of the mean of updates clipped to `bound` times their median length (Sun et al. 2019).

    >>> clipped_mean(torch.diag(torch.tensor([1.0, 1.0, 100.0])), bound=1)
    tensor([0.3333, 0.3333, 0.0333], dtype=torch.float64)
    """
    lengths = gram.double().diagonal().clamp(min=0).sqrt()
    longest = bound * lengths.median()
    return torch.where(lengths > longest, longest / lengths, 1) / len(gram)


class Robust(CommonUpdate):
    """One update for all that a few hostile clients cannot move far."""

    kind: Literal["robust"] = "robust"
    rule: Literal["krum", "geometric_median", "clipped_mean"] = Field(
        "geometric_median", description="how the weights are computed"
    )
    hostile: int = Field(1, ge=0, description="krum: number of clients that may be hostile")
    chosen: int | None = Field(1, ge=1, description="krum: number of updates to average; null: all but the hostile")
    bound: float = Field(1.0, gt=0, description="clipped_mean: maximum length, in median lengths")

    @field_validator("sketch")
    @classmethod
    def _judges_whole_rows(cls, sketch: int | None) -> None:
        if sketch is not None:
            raise ValueError(f"expected null, since a hostile update can hide from a random projection, got {sketch}")

    @property
    def reveals_rows(self) -> str | None:
        """It must see what it judges."""
        return "which must see the rows it judges: a hostile client's sketch need not be of its row"

    def weights(self, gram: Tensor) -> Tensor:
        """Apply the chosen rule."""
        match self.rule:
            case "krum":
                return krum(gram, self.hostile, self.chosen or max(len(gram) - self.hostile, 1))
            case "geometric_median":
                return geometric_median(gram)
            case "clipped_mean":
                return clipped_mean(gram, self.bound)
