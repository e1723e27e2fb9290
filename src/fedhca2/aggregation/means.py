"""Mixtures of parameters: means of all members, of groups, clusters or friends, and FedAMP's attention."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal, Self

import scipy  # imports its parts when they are used
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
    n = len(gram)
    centre = torch.eye(n, dtype=torch.float64) - 1 / n
    centred = centre @ gram.double() @ centre
    if n == 1 or centred.diagonal().max() <= 1e-24 * gram.diagonal().max().clamp(min=1):
        return [1] * n
    distance = 1 - cosines((centred + centred.T) / 2)
    apart = scipy.spatial.distance.squareform(distance.numpy(), checks=False)
    tree = scipy.cluster.hierarchy.linkage(apart, method="average")
    return [int(label) for label in scipy.cluster.hierarchy.fcluster(tree, count, criterion="maxclust")]


def layer_votes(similarity: Tensor, friends: int) -> Tensor:
    """Votes of each layer of each client, [L, N, N]: K for the most similar client, K − 1 for the next, and so on.

    >>> layer_votes(torch.tensor([[[1.0, 0.5, 0.1], [0.5, 1.0, 0.0], [0.1, 0.0, 1.0]]]), friends=2)[0]
    tensor([[2., 1., 0.],
            [1., 2., 0.],
            [1., 0., 2.]], dtype=torch.float64)
    """
    similarity = similarity.double()
    k = min(friends, similarity.shape[1])
    best = similarity.argsort(dim=2, descending=True, stable=True)[:, :, :k]
    votes = torch.arange(k, 0, -1, dtype=torch.float64).expand(best.shape)
    return torch.zeros_like(similarity).scatter(2, best, votes)


def voting_weights(similarity: Tensor, friends: int) -> Tensor:
    r"""Weights of every client's friends, [N, N], from the cosines of updates in each voting layer, [L, N, N].

    A layer gives its K most similar clients K, K − 1, …, 1 votes; the K clients with the most votes are friends, F(i).

    $$\hat s^l_{ij} = s^l_{ij} / \textstyle\sum_j s^l_{ij}, \quad s_{ij} = \mathrm{mean}_l\, \hat s^l_{ij}, \quad
    w_{ij} = s_{ij} / \textstyle\sum_{j \in F(i)} s_{ij}$$

    A negative similarity has weight 0; otherwise the sums could be zero.

    >>> voting_weights(torch.tensor([[[1.0, 0.5, 0.1], [0.5, 1.0, 0.0], [0.1, 0.0, 1.0]]]), friends=2)
    tensor([[0.6667, 0.3333, 0.0000],
            [0.3333, 0.6667, 0.0000],
            [0.0909, 0.0000, 0.9091]], dtype=torch.float64)
    """
    similarity = similarity.double()
    k = min(friends, similarity.shape[1])
    chosen = layer_votes(similarity, k).sum(dim=0).argsort(dim=1, descending=True, stable=True)[:, :k]
    positive = similarity.clamp(min=0)
    mean = (positive / positive.sum(dim=2, keepdim=True)).mean(dim=0)
    weights = torch.zeros_like(mean).scatter(1, chosen, mean.gather(1, chosen))
    return weights / weights.sum(dim=1, keepdim=True)


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


class Mean(Aggregator):
    """Every member gets the mean of all parameters, uniform or by the number of samples."""

    sums_once: ClassVar[bool] = True

    kind: Literal["mean"] = "mean"
    by: By = "clients"

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row for all, which replaces their own."""
        weights = mean_weights([member.samples if self.by == "samples" else 1 for member in members])
        return Mixing("nothing", (Blend(weights[None], (0,) * len(members)),))


class GroupMean(Aggregator):
    """Mean of the parameters within each group of the same data set and task or tasks."""

    sums_once: ClassVar[bool] = True

    kind: Literal["group_mean"] = "group_mean"
    by: By = "clients"

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per group."""
        samples = [member.samples for member in members] if self.by == "samples" else None
        return Mixing("nothing", (Blend(*group_weights([member.group for member in members], samples)),))


class Pull(Aggregator):
    """Members move from their group's mean towards the mean of all, by a share that falls to 0 over the rounds."""

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

    measure: ClassVar[Measure] = "differences"
    whole: ClassVar[bool] = True
    sums_once: ClassVar[bool] = True

    kind: Literal["clustered"] = "clustered"
    clusters: Annotated[int, Field(ge=1, description="number of clusters")] = 2

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per cluster."""
        return Mixing("nothing", (Blend(*group_weights(clusters_of(products.sum(dim=0), self.clusters))),))


class Voting(Aggregator):
    """Updates mixed among friends, then one model per data set and task: MaT-FL's paper."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"

    kind: Literal["voting"] = "voting"
    friends: Annotated[int, Field(ge=1, description="K, the number of clients to aggregate with, including itself")] = 8
    layers: Annotated[int, Field(ge=1, description="how many layers vote, counted from the last")] = 8

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """One mixed row per group, of updates: the group's mean of what each of its clients would take."""
        voters = self.voters(layout)
        similarity = torch.stack([cosines(products[p]) for p in voters])
        weights = voting_weights(similarity, self.friends)
        means, gets = group_weights([member.group for member in members])
        return Mixing("start", (Blend(means @ weights, gets),), votes=layer_votes(similarity, self.friends))

    def voters(self, layout: Layout) -> list[int]:
        """The tensors that vote: the last weights of convolutions and linear layers."""
        named = enumerate(zip(layout.names, layout.shapes, strict=True))
        voters = [p for p, (name, shape) in named if name.endswith("weight") and len(shape) >= 2]
        if not voters:
            raise ValueError(f"voting: expected a weight of two or more dimensions, got {layout.names}")
        return voters[-self.layers :]


class Attentive(Aggregator):
    """Every member's own convex mixture of all parameters."""

    measure: ClassVar[Measure] = "differences"
    whole: ClassVar[bool] = True

    kind: Literal["attentive"] = "attentive"
    alpha: Annotated[float, Field(gt=0, description="α_k, the step towards the others")] = 1.0
    sigma: Annotated[float, Field(gt=0, description="squared distance at which a model's weight falls to 1/e")] = 1.0

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per member."""
        weights = attentive_weights(products.sum(dim=0), self.alpha, self.sigma)
        return Mixing("nothing", (Blend(weights, tuple(range(len(members)))),))
