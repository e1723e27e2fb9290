"""Optimisers on the server: the mean of the clients' parameters is where the next step leads, not the next model."""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.aggregation.aggregator import Aggregator, By, Member, Mixing
from fedhca2.aggregation.means import Mean
from fedhca2.params import Layout


class ServerMomentum(Aggregator):
    r"""FedAvgM: every member gets a model x that follows the mean of all parameters with momentum.

    $$m \leftarrow \beta m + (\bar\theta - x), \quad x \leftarrow x + \eta m$$

    The server keeps x and m. In the first round it knows no x, so x is the mean and m is 0.
    """

    sums_once: ClassVar[bool] = True
    keeps_rows: ClassVar[int] = 2

    kind: Literal["server_momentum"] = "server_momentum"
    by: By = "clients"
    rate: Annotated[float, Field(gt=0, description="η, the server's learning rate")] = 1.0
    momentum: Annotated[float, Field(ge=0, lt=1, description="β, share of the momentum that stays")] = 0.5

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """The mean, for all."""
        return Mean(by=self.by).mixing(products, members, layout)

    def renew(self, mixed: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """The model after a step, and the rows x and m."""
        x, m = kept if len(kept) else (mixed[0], torch.zeros_like(mixed[0]))
        m = self.momentum * m + (mixed[0] - x)
        x = x + self.rate * m
        return x[None], torch.stack([x, m])


class ServerAdam(Aggregator):
    r"""FedAdam, FedYogi and FedAdagrad: every member gets a model x that moves by an adaptive step (Reddi et al. 2021).

    $$\Delta = \bar\theta - x, \quad m \leftarrow \beta_1 m + (1 - \beta_1)\Delta, \quad
    x \leftarrow x + \eta\, m / (\sqrt v + \tau)$$

    and for v, from $\tau^2$, one of $\beta_2 v + (1 - \beta_2)\Delta^2$, $v - (1 - \beta_2)\Delta^2\,
    \mathrm{sgn}(v - \Delta^2)$ and $v + \Delta^2$. The server keeps x, m and $\sqrt v$, which has the range of updates.
    In the first round it knows no x, so x is the mean, m is 0 and v stays.
    """

    sums_once: ClassVar[bool] = True
    keeps_rows: ClassVar[int] = 3

    kind: Literal["server_adam"] = "server_adam"
    rule: Annotated[Literal["adam", "yogi", "adagrad"], Field(description="how v follows squared changes")] = "adam"
    by: By = "clients"
    rate: Annotated[float, Field(gt=0, description="η, the server's learning rate")] = 1e-2
    beta1: Annotated[float, Field(ge=0, lt=1, description="β₁, share of the momentum that stays")] = 0.9
    beta2: Annotated[float, Field(ge=0, lt=1, description="β₂ of adam and yogi, share of v that stays")] = 0.99
    tau: Annotated[float, Field(gt=0, description="τ: changes far below it are not enlarged")] = 1e-3

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """The mean, for all."""
        return Mean(by=self.by).mixing(products, members, layout)

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
