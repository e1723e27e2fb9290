"""One update for all clients: a weighted sum of all updates, with weights from their Gram matrix."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Measure, Member, Mixing
from fedhca2.aggregation.grouped import group_weights
from fedhca2.aggregation.weightings import WEIGHTINGS, fairgrad
from fedhca2.messages import Kind
from fedhca2.params import Layout


class CommonUpdate(Aggregator):
    """All clients continue with U = Σ w_i·Δ_i instead of their own update, or add it to their own with a learned α."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"
    whole: ClassVar[bool] = True

    alpha: Annotated[
        float | None,
        Field(
            ge=0, le=1, description="initial value of a client's learned share α of U; with none, U replaces its update"
        ),
    ] = None
    groups: Annotated[
        bool, Field(description="with α: clients with the same data set and tasks continue from their mean")
    ] = False
    across: Annotated[
        Literal["clients", "groups"], Field(description="what is weighted: updates, or groups' means")
    ] = "clients"
    length: Annotated[Literal["own", "mean"], Field(description="length of U: its own, or that of the mean update")] = (
        "own"
    )
    rate: Annotated[float, Field(gt=0, description="factor of U")] = 1.0
    memory: Annotated[
        float, Field(ge=0, lt=1, description="share of the past in a moving average of the weights over rounds")
    ] = 0.0

    @abstractmethod
    def weights(self, gram: Tensor) -> Tensor:
        """The weights w, [N], of updates with this Gram matrix, [N, N]."""

    @property
    def learns(self) -> bool:
        """Whether there is an α."""
        return self.alpha is not None

    @property
    def reveals_rows(self) -> str:
        """With the means of groups, a row is in two sums."""
        return super().reveals_rows if self.groups and self.learns else ""

    def first_weights(self, layout: Layout) -> tuple[float, ...]:
        """One α, or none."""
        return () if self.alpha is None else (self.alpha,)

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """U for all, times α if there is one; with `groups`, the group's mean update replaces the client's own."""
        gram = products.sum(dim=0)
        means, gets = group_weights([member.group for member in members])
        found = self.weights(means @ gram @ means.T) @ means if self.across == "groups" else self.weights(gram)
        found, kept = self._averaged(found, members)
        added = Blend((self._scale(found, gram) * found)[None], (0,) * len(members), hyper=self.learns)
        if not self.learns:
            return Mixing("start", (added,), keeps=kept)
        if not self.groups:
            return Mixing("trained", (added,), keeps=kept)
        return Mixing("start", (Blend(means, gets), added), keeps=kept)

    def _averaged(self, weights: Tensor, members: Sequence[Member]) -> tuple[Tensor, tuple[float, ...]]:
        """The moving average (CR-MOGM) of weights times N, since clients may miss rounds; and what to keep."""
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
    """A common update with one of the weightings of multi-task learning."""

    kind: Literal["weighted"] = "weighted"
    weighting: Annotated[
        Literal["mean", "mgda", "pcgrad", "upgrad", "dualproj", "imtl_g", "aligned_mtl", "nash_mtl", "fairgrad"],
        Field(description="how to compute the weights from the inner products of updates"),
    ] = "mean"
    unit: Annotated[bool, Field(description="first divide every update by its length")] = False
    fairness: Annotated[float, Field(gt=0, le=10, description="α of fairgrad: 1 is nash_mtl, the limit is mgda")] = 2.0

    @property
    def reveals_rows(self) -> str:
        """Reveals a row if weights may be negative, or close to zero for all rows but one."""
        if self.weighting in ("mean", "pcgrad", "upgrad", "dualproj"):  # no weight is below 1/N
            return super().reveals_rows
        return "which can give one row nearly all the weight, and the sum then reveals it"

    def weights(self, gram: Tensor) -> Tensor:
        """Apply the chosen function to the Gram matrix divided by its largest entry."""
        squares = gram.double().diagonal().clamp(min=0)
        if not squares.any():
            return torch.full((len(gram),), 1 / len(gram), dtype=torch.float64)
        lengths = torch.where(squares > 0, squares, 1).sqrt() if self.unit else squares.max().sqrt().expand(len(gram))
        scaled = (gram.double() / lengths[:, None] / lengths).numpy()
        found = fairgrad(scaled, self.fairness) if self.weighting == "fairgrad" else WEIGHTINGS[self.weighting](scaled)
        return torch.from_numpy(found) / (lengths if self.unit else 1)
