"""One update for all clients: a weighted sum of their updates, with weights from the Gram matrix."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Measure, Member, Mixing
from fedhca2.aggregation.means import group_weights
from fedhca2.aggregation.weightings import WEIGHTINGS, fairgrad
from fedhca2.messages import Kind
from fedhca2.params import Layout


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

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Give all U, times α if there is one; with `groups` the group's mean update replaces the client's own."""
        gram = products.sum(dim=0)
        means, gets = group_weights([member.group for member in members])
        weights = self.weights(means @ gram @ means.T) @ means if self.across == "groups" else self.weights(gram)
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


class Weighted(CommonUpdate):
    """One update for all, by a weighting from multi-task learning."""

    kind: Literal["weighted"] = "weighted"
    weighting: Annotated[
        Literal["mean", "mgda", "pcgrad", "upgrad", "dualproj", "imtl_g", "aligned_mtl", "nash_mtl", "fairgrad"],
        Field(description="how inner products of updates become weights"),
    ] = "mean"
    unit: Annotated[bool, Field(description="divide every update by its length first")] = False
    fairness: Annotated[float, Field(gt=0, le=10, description="α of fairgrad: 1 is nash_mtl, the limit is mgda")] = 2.0

    @property
    def reveals_rows(self) -> str:
        """Some weights can be negative, or nearly 0 for all rows but one."""
        if self.weighting in ("mean", "pcgrad", "upgrad", "dualproj"):  # no weight is below 1/N
            return super().reveals_rows
        return "which can give one row nearly all the weight, and the sum then reveals it"

    def weights(self, gram: Tensor) -> Tensor:
        """Apply the chosen function to the Gram matrix, scaled; equal weights if all updates are 0."""
        squares = gram.double().diagonal().clamp(min=0)
        if not squares.any():
            return torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
        lengths = torch.where(squares > 0, squares, 1).sqrt() if self.unit else squares.max().sqrt().expand(len(gram))
        scaled = (gram.double() / lengths[:, None] / lengths).numpy()
        weights = (
            fairgrad(scaled, self.fairness) if self.weighting == "fairgrad" else WEIGHTINGS[self.weighting](scaled)
        )
        return torch.from_numpy(weights) / (lengths if self.unit else 1)
