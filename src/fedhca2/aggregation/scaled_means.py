"""Means of updates scaled by steps (FedNova) or agreement (FedExP, Model Stock), and pFedGraph's mixtures."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, By, Measure, Member, Mixing
from fedhca2.aggregation.common_update import CommonUpdate
from fedhca2.aggregation.means import cosines, mean_weights
from fedhca2.messages import Kind
from fedhca2.params import Layout


def per_step_weights(steps: Sequence[int], shares: Tensor) -> tuple[Tensor, float]:
    r"""FedNova's weights of the mean update per step, $p_i / a_i$, and the steps that it is taken for, $\sum p_i a_i$.

    >>> per_step_weights([1, 3], torch.tensor([0.5, 0.5]))
    (tensor([0.5000, 0.1667], dtype=torch.float64), 2.0)
    """
    counts = torch.tensor(steps, dtype=torch.float64)
    return shares.double() / counts, float(shares.double() @ counts)


def extrapolation(gram: Tensor) -> float:
    r"""FedExP's step: $\eta = \max\left(1, \tfrac{\sum_i \lVert\Delta_i\rVert^2}{2N\lVert\bar\Delta\rVert^2}\right)$.

    It is at most N, also for updates that cancel out.

    >>> extrapolation(torch.eye(8)), extrapolation(torch.ones(8, 8))
    (4.0, 1.0)
    """
    gram = gram.double()
    squares, of_mean = float(gram.diagonal().mean()), float(gram.mean())
    return min(max(1.0, squares / (2 * of_mean)), float(len(gram))) if of_mean > 0 else 1.0


def stock_ratio(gram: Tensor) -> Tensor:
    r"""Model Stock's ratios [P] from products by tensor, [P, N, N], and the mean cosine θ between two updates.

    $$t = \frac{N \cos\theta}{(N - 1) \cos\theta + 1}$$

    A negative mean cosine counts as 0.

    >>> stock_ratio(torch.stack([torch.eye(2), torch.ones(2, 2)]))
    tensor([0., 1.], dtype=torch.float64)
    """
    n = gram.shape[1]
    if n == 1:
        return torch.ones(len(gram), dtype=torch.float64)
    cosine = torch.stack([(cosines(each).sum() - n) / (n * (n - 1)) for each in gram]).clamp(min=0)
    return n * cosine / ((n - 1) * cosine + 1)


def onto_simplex(points: Tensor) -> Tensor:
    r"""The nearest points of the simplex $w \ge 0, \sum w = 1$ to the rows of a matrix.

    >>> onto_simplex(torch.tensor([[2.0, 0.0], [0.3, 0.5]]))
    tensor([[1.0000, 0.0000],
            [0.4000, 0.6000]], dtype=torch.float64)
    """
    ordered = points.double().sort(dim=1, descending=True).values
    ranks = torch.arange(1, points.shape[1] + 1, dtype=torch.float64)
    above = (ordered.cumsum(dim=1) - 1) / ranks  # what to subtract if that many entries stay positive
    last = (ordered > above).sum(dim=1, keepdim=True) - 1
    return (points.double() - above.gather(1, last)).clamp(min=0)


def graph_weights(gram: Tensor, shares: Tensor, lam: float) -> Tensor:
    r"""pFedGraph's weights [N, N]: the simplex's nearest points to $p + \cos_{i\cdot} / 2\lambda$.

    They minimise $\lambda\lVert w - p\rVert^2 - \sum_j w_j \cos_{ij}$. A cosine above 0.9 counts as 1, as released.

    >>> graph_weights(torch.eye(2), torch.tensor([0.5, 0.5]), lam=1.0)
    tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]], dtype=torch.float64)
    """
    cosine = cosines(gram)
    cosine = torch.where(cosine > 0.9, 1.0, cosine)
    return onto_simplex(shares.double() + cosine / (2 * lam))


class StepMean(Aggregator):
    """FedNova: the mean update per step, taken for the mean number of steps."""

    sends: ClassVar[Kind] = "updates"
    sums_once: ClassVar[bool] = True

    kind: Literal["step_mean"] = "step_mean"
    by: By = "clients"

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row for all: the mean update per step."""
        shares = mean_weights([member.samples if self.by == "samples" else 1 for member in members])
        weights, steps = per_step_weights([member.steps for member in members], shares)
        return Mixing("start", (Blend(weights[None], (0,) * len(members), scale=steps),))


class Extrapolated(CommonUpdate):
    """FedExP: the mean update, and the more of it the less the updates agree."""

    kind: Literal["extrapolated"] = "extrapolated"

    def weights(self, gram: Tensor) -> Tensor:
        """Equal weights."""
        return torch.full((len(gram),), extrapolation(gram) / len(gram), dtype=torch.float64)


class Stock(Aggregator):
    """Model Stock: the mean update, and in each tensor the less of it the less the updates agree."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"

    kind: Literal["stock"] = "stock"

    @property
    def reveals_rows(self) -> str | None:
        """A sketch is of a whole row."""
        return "which compares rows tensor by tensor, and a sketch is of a whole row"

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row for all."""
        weights = (stock_ratio(products) / len(members))[:, None, None].expand(-1, 1, len(members))
        return Mixing("start", (Blend(weights, (0,) * len(members)),))


class Graph(Aggregator):
    """pFedGraph: every member's own mixture of all parameters, the more of another's the more alike they have become.

    Parameters are compared by their differences from the mean of all.
    """

    measure: ClassVar[Measure] = "differences"
    whole: ClassVar[bool] = True

    kind: Literal["graph"] = "graph"
    by: By = "clients"
    closeness: Annotated[float, Field(gt=0, description="λ: how close weights stay to those of a plain mean")] = 0.8

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per member."""
        n = len(members)
        shares = mean_weights([member.samples if self.by == "samples" else 1 for member in members])
        centre = torch.eye(n, dtype=torch.float64) - 1 / n
        centred = centre @ products.sum(dim=0) @ centre
        weights = graph_weights((centred + centred.T) / 2, shares, self.closeness)
        return Mixing("nothing", (Blend(weights, tuple(range(n))),))
