"""Means and other mixtures by client, group, cluster or friends, and optimisers on the server that follow a mean."""

from collections.abc import Sequence
from typing import ClassVar, Literal, Self

import scipy  # imports its parts when they are used
import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Mixing
from fedhca2.aggregation.rows import Measure, Member
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


def centred(gram: Tensor) -> Tensor:
    """The Gram matrix of vectors minus their mean.

    >>> centred(torch.tensor([[4.0, 0.0], [0.0, 0.0]]))
    tensor([[ 1., -1.],
            [-1.,  1.]], dtype=torch.float64)
    """
    centre = torch.eye(len(gram), dtype=torch.float64) - 1 / len(gram)
    product = centre @ gram.double() @ centre
    return (product + product.T) / 2


def clusters_of(gram: Tensor, count: int) -> list[int]:
    r"""MaT-FL's clusters: average linkage on the cosine distance of θ_i − mean θ, cut into at most `count` groups.

    >>> clusters_of(torch.tensor([[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]), 2)
    [1, 1, 2]
    """
    apart_from_mean = centred(gram)
    if len(gram) == 1 or apart_from_mean.diagonal().max() <= 1e-24 * gram.diagonal().max().clamp(min=1):
        return [1] * len(gram)
    distance = 1 - cosines(apart_from_mean)
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


class Averaging(Aggregator):
    """Base class of means in which clients count equally, or by their images; by default one mean of all rows."""

    sums_once: ClassVar[bool] = True

    by: Literal["clients", "samples"] = Field("clients", description="what counts equally in a mean: clients or images")

    def counts(self, members: Sequence[Member]) -> list[int]:
        """How often each member counts."""
        return [member.samples if self.by == "samples" else 1 for member in members]

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row for all, which replaces their own."""
        return Mixing("nothing", (Blend(mean_weights(self.counts(members))[None], (0,) * len(members)),))


class Mean(Averaging):
    """Every member gets the mean of all parameters, uniform or by the number of samples."""

    kind: Literal["mean"] = "mean"


class GroupMean(Averaging):
    """Mean of the parameters within each group of the same data set and task or tasks."""

    kind: Literal["group_mean"] = "group_mean"

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per group."""
        groups = [member.group for member in members]
        return Mixing("nothing", (Blend(*group_weights(groups, self.counts(members))),))


class Pull(Aggregator):
    """Members move from their group's mean towards the mean of all, by a share that falls to 0 over the rounds."""

    kind: Literal["pull"] = "pull"
    gamma: float = Field(1, ge=0, le=1, description="share of the way to the mean of all in the first round")
    until: float = Field(
        0.375, ge=0, le=1, description="part of the rounds in which that share falls to 0, in equal steps"
    )

    def at(self, done: float) -> Self:
        """The same aggregator with the share that is left after this part of the rounds."""
        left = max(0.0, 1 - done / self.until) if self.until else 0.0
        return self.model_copy(update={"gamma": self.gamma * left})

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        r"""Mix one row per group, $m_g + \gamma (\bar\theta - m_g)$ for its mean $m_g$."""
        means, gets = group_weights([member.group for member in members])
        return Mixing("nothing", (Blend((1 - self.gamma) * means + self.gamma / len(members), gets),))


class Clustered(Aggregator):
    """Mean of the parameters within clusters of similar parameters: MaT-FL as released."""

    measure: ClassVar[Measure] = "differences"
    whole: ClassVar[bool] = True
    sums_once: ClassVar[bool] = True

    kind: Literal["clustered"] = "clustered"
    clusters: int = Field(2, ge=1, description="number of clusters")

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one row per cluster."""
        return Mixing("nothing", (Blend(*group_weights(clusters_of(products.sum(dim=0), self.clusters))),))


class Voting(Aggregator):
    """Updates mixed among friends, then one model per data set and task: MaT-FL's paper."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"

    kind: Literal["voting"] = "voting"
    friends: int = Field(8, ge=1, description="K, the number of clients to aggregate with, including itself")
    layers: int = Field(8, ge=1, description="how many layers vote, counted from the last")

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
    alpha: float = Field(1.0, gt=0, description="α_k, the step towards the others")
    sigma: float = Field(1.0, gt=0, description="squared distance at which a model's weight falls to 1/e")

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        r"""Mix one row per member, as FedAMP does.

        $$\xi_{ij} = \frac\alpha\sigma \exp(-\lVert w_i - w_j \rVert^2 / \sigma), \quad
        u_i = (1 - \textstyle\sum_{j \ne i} \xi_{ij}) w_i + \sum_{j \ne i} \xi_{ij} w_j$$

        If a row of ξ sums to more than 1, as for equal models, it is divided by its sum: u must be a convex mixture.
        """
        gram = products.sum(dim=0).double()
        squares = gram.diagonal()
        distances = (squares[:, None] + squares - 2 * gram).clamp(min=0)
        xi = (self.alpha / self.sigma * torch.exp(-distances / self.sigma)).fill_diagonal_(0)
        xi = xi / xi.sum(dim=1, keepdim=True).clamp(min=1)
        return Mixing("nothing", (Blend(xi + torch.diag(1 - xi.sum(dim=1)), tuple(range(len(members)))),))


class StepMean(Averaging):
    """FedNova: the mean update per step, taken for the mean number of steps."""

    sends: ClassVar[Kind] = "updates"

    kind: Literal["step_mean"] = "step_mean"

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        r"""Mix one row for all, $\sum p_i \Delta_i / a_i$ for the steps $a_i$, and scale it by $\sum p_i a_i$."""
        shares = mean_weights(self.counts(members))
        steps = torch.tensor([member.steps for member in members], dtype=torch.float64)
        return Mixing("start", (Blend((shares / steps)[None], (0,) * len(members), scale=float(shares @ steps)),))


class Stock(Aggregator):
    """Model Stock: the mean update, and in each tensor the less of it the less the updates agree."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"
    reveals: ClassVar[str] = "which compares rows tensor by tensor, and a sketch is of a whole row"

    kind: Literal["stock"] = "stock"

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        r"""Mix one row for all: the mean update times $t = N \cos\theta / ((N - 1) \cos\theta + 1)$ for each tensor.

        cos θ is the mean cosine between two updates, or 0 if that is negative.
        """
        n, ratio = len(members), torch.ones(len(products), dtype=torch.float64)
        if n > 1:
            cosine = torch.stack([(cosines(each).sum() - n) / (n * (n - 1)) for each in products]).clamp(min=0)
            ratio = n * cosine / ((n - 1) * cosine + 1)
        return Mixing("start", (Blend((ratio / n)[:, None, None].expand(-1, 1, n), (0,) * n),))


class Graph(Averaging):
    """pFedGraph: every member's own mixture of all parameters, the more of another's the more alike they have become.

    Parameters are compared by their differences from the mean of all.
    """

    measure: ClassVar[Measure] = "differences"
    whole: ClassVar[bool] = True
    sums_once: ClassVar[bool] = False

    kind: Literal["graph"] = "graph"
    closeness: float = Field(0.8, gt=0, description="λ: how close weights stay to those of a plain mean")

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        r"""Mix one row per member, with the simplex's nearest points to $p + \cos_{i\cdot} / 2\lambda$ as weights.

        They minimise $\lambda\lVert w - p\rVert^2 - \sum_j w_j \cos_{ij}$. A cosine above 0.9 counts as 1, as released.
        """
        cosine = cosines(centred(products.sum(dim=0)))
        cosine = torch.where(cosine > 0.9, 1.0, cosine)
        weights = onto_simplex(mean_weights(self.counts(members)) + cosine / (2 * self.closeness))
        return Mixing("nothing", (Blend(weights, tuple(range(len(members)))),))


class ServerMomentum(Averaging):
    r"""FedAvgM: every member gets a model x that follows the mean of all parameters with momentum.

    $$m \leftarrow \beta m + (\bar\theta - x), \quad x \leftarrow x + \eta m$$

    The server keeps x and m. In the first round it knows no x, so x is the mean and m is 0.
    """

    keeps_rows: ClassVar[int] = 2

    kind: Literal["server_momentum"] = "server_momentum"
    rate: float = Field(1.0, gt=0, description="η, the server's learning rate")
    momentum: float = Field(0.5, ge=0, lt=1, description="β, share of the momentum that stays")

    def renew(self, mixed: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The model after a step, and the rows x and m."""
        x, m = kept if len(kept) else (mixed[0], torch.zeros_like(mixed[0]))
        m = self.momentum * m + (mixed[0] - x)
        x = x + self.rate * m
        return x[None], torch.stack([x, m])


class ServerAdam(Averaging):
    r"""FedAdam, FedYogi and FedAdagrad: every member gets a model x that moves by an adaptive step (Reddi et al. 2021).

    $$\Delta = \bar\theta - x, \quad m \leftarrow \beta_1 m + (1 - \beta_1)\Delta, \quad
    x \leftarrow x + \eta\, m / (\sqrt v + \tau)$$

    and for v, from $\tau^2$, one of $\beta_2 v + (1 - \beta_2)\Delta^2$, $v - (1 - \beta_2)\Delta^2\,
    \mathrm{sgn}(v - \Delta^2)$ and $v + \Delta^2$. The server keeps x, m and $\sqrt v$, which has the range of updates.
    In the first round it knows no x, so x is the mean, m is 0 and v stays.
    """

    keeps_rows: ClassVar[int] = 3

    kind: Literal["server_adam"] = "server_adam"
    rule: Literal["adam", "yogi", "adagrad"] = Field("adam", description="how v follows squared changes")
    rate: float = Field(1e-2, gt=0, description="η, the server's learning rate")
    beta1: float = Field(0.9, ge=0, lt=1, description="β₁, share of the momentum that stays")
    beta2: float = Field(0.99, ge=0, lt=1, description="β₂ of adam and yogi, share of v that stays")
    tau: float = Field(1e-3, gt=0, description="τ: changes far below it are not enlarged")

    def renew(self, mixed: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The model after a step, and the rows x, m and √v."""
        if not len(kept):
            return mixed, torch.cat([mixed, torch.zeros_like(mixed), torch.full_like(mixed, self.tau)])
        x, m, root = kept
        change, v = mixed[0] - x, root.square()
        m = self.beta1 * m + (1 - self.beta1) * change
        match self.rule:
            case "adam":
                v = self.beta2 * v + (1 - self.beta2) * change.square()
            case "yogi":
                v = v - (1 - self.beta2) * change.square() * (v - change.square()).sign()
            case "adagrad":
                v = v + change.square()
        x = x + self.rate * m / (v.sqrt() + self.tau)
        return x[None], torch.stack([x, m, v.sqrt()])
