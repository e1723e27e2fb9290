"""Means: of all members, of those with the same data set and tasks, of clusters found from the parameters."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, By, Measure, Member, Mixing
from fedhca2.messages import Kind
from fedhca2.params import Layout


def mean_weights(samples: Sequence[int]) -> Tensor:
    r"""Weights $n_i / \sum_j n_j$ of a mean, [N].

    >>> mean_weights([1, 3])
    tensor([0.2500, 0.7500], dtype=torch.float64)
    """
    counts = torch.tensor(samples, dtype=torch.float64)
    return counts / counts.sum()


def group_weights(groups: Sequence[str | int], samples: Sequence[int] | None = None) -> tuple[Tensor, tuple[int, ...]]:
    """Weights of each group's mean, [M, N], and which mean each member gets.

    >>> group_weights(["a", "b", "a"])
    (tensor([[0.5000, 0.0000, 0.5000],
            [0.0000, 1.0000, 0.0000]], dtype=torch.float64), (0, 1, 0))
    """
    order = {group: m for m, group in enumerate(dict.fromkeys(groups))}
    gets = tuple(order[group] for group in groups)
    weights = torch.zeros(len(order), len(groups), dtype=torch.float64)
    for member, group in enumerate(gets):
        weights[group, member] = samples[member] if samples else 1
    return weights / weights.sum(dim=1, keepdim=True), gets


def pull_weights(groups: Sequence[str], gamma: float) -> tuple[Tensor, tuple[int, ...]]:
    r"""Weights of $m_g + \gamma (\bar\theta - m_g)$ for the mean $m_g$ of each group, [M, N], and which a member gets.

    >>> pull_weights(["a", "b"], gamma=0.5)
    (tensor([[0.7500, 0.2500],
            [0.2500, 0.7500]], dtype=torch.float64), (0, 1))
    """
    means, gets = group_weights(groups)
    return (1 - gamma) * means + gamma / len(groups), gets


def cosines(gram: Tensor) -> Tensor:
    """Cosines between vectors from their Gram matrix; 0 with a zero vector, but 1 of every vector with itself.

    >>> cosines(torch.tensor([[4.0, 2.0], [2.0, 4.0]]))
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
    """
    gram = gram.double()
    lengths = gram.diagonal().clamp(min=0).sqrt()
    cosine = gram / (lengths[:, None] * lengths).clamp(min=torch.finfo(torch.float64).tiny)
    return cosine.clamp(-1, 1).fill_diagonal_(1)


def clusters_of(gram: Tensor, count: int) -> list[int]:
    r"""MaT-FL's clusters: average linkage on the cosine distance of θ_i − mean θ, cut into at most `count` groups.

    >>> clusters_of(torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]), 2)
    [1, 1, 2]
    """
    from scipy.cluster.hierarchy import fcluster, linkage
    from scipy.spatial.distance import squareform

    n = len(gram)
    centre = torch.eye(n, dtype=torch.float64) - 1 / n
    centred = centre @ gram.double() @ centre
    if n == 1 or centred.diagonal().max() <= 1e-24 * gram.diagonal().max().clamp(min=1):
        return [1] * n
    distance = 1 - cosines((centred + centred.T) / 2)
    tree = linkage(squareform(distance.numpy(), checks=False), method="average")
    return [int(label) for label in fcluster(tree, count, criterion="maxclust")]


class Mean(Aggregator):
    """Every member gets the mean of all parameters, uniform or by the number of samples."""

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "nothing"

    kind: Literal["mean"] = "mean"
    by: By = "clients"

    @property
    def reveals_rows(self) -> str:
        """One sum of all rows."""
        return ""

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row for all, which replaces their own."""
        weights = mean_weights([member.samples if self.by == "samples" else 1 for member in members])
        return Mixing("nothing", (Blend(weights[None], (0,) * len(members)),))


class GroupMean(Aggregator):
    """Mean of the parameters within each group of the same data set and task or tasks."""

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "nothing"

    kind: Literal["group_mean"] = "group_mean"
    by: By = "clients"

    @property
    def reveals_rows(self) -> str:
        """One sum per group."""
        return ""

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per group."""
        samples = [member.samples for member in members] if self.by == "samples" else None
        return Mixing("nothing", (Blend(*group_weights([member.group for member in members], samples)),))


class Pull(Aggregator):
    """Members move from their group's mean towards the mean of all, by a share that falls to 0 over the rounds."""

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "nothing"

    kind: Literal["pull"] = "pull"
    gamma: Annotated[float, Field(ge=0, le=1, description="share of the way to the mean of all in the first round")] = 1
    until: Annotated[
        float, Field(ge=0, le=1, description="part of the rounds in which that share falls to 0, in equal steps")
    ] = 0.375

    def at(self, done: float) -> Self:
        """The same aggregator with the share that is left after this part of the rounds."""
        left = max(0.0, 1 - done / self.until) if self.until else 0.0
        return self.model_copy(update={"gamma": self.gamma * left})

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per group."""
        weights, gets = pull_weights([member.group for member in members], self.gamma)
        return Mixing("nothing", (Blend(weights, gets),))


class Clustered(Aggregator):
    """Mean of the parameters within clusters of similar parameters: MaT-FL as released."""

    sends: ClassVar[Kind] = "parameters"
    measure: ClassVar[Measure] = "differences"
    whole: ClassVar[bool] = True

    kind: Literal["clustered"] = "clustered"
    clusters: Annotated[int, Field(ge=1, description="number of clusters")] = 2

    @property
    def reveals_rows(self) -> str:
        """One sum per group."""
        return ""

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per cluster."""
        return Mixing("nothing", (Blend(*group_weights(clusters_of(products.sum(dim=0), self.clusters))),))
