"""MaT-FL as in its paper: the layers of a model vote for the clients to aggregate with."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, Blend, Measure, Member, Mixing
from fedhca2.aggregation.means import cosines, group_weights
from fedhca2.messages import Kind
from fedhca2.params import Layout


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
        found = [p for p, (name, shape) in named if name.endswith("weight") and len(shape) >= 2]
        if not found:
            raise ValueError(f"voting: the layout should have a weight of two or more dimensions, found {layout.names}")
        return found[-self.layers :]
