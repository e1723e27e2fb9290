"""A method defined outside the package: every encoder follows the updates that agree with its own.

A config names it by its location and sets its fields like those of any other method:

    method: {name: "examples/add_a_method.py:FRIENDLY", sharpness: 2}

Run this file to check it.
"""

from collections.abc import Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.methods import Aggregator, Blend, Kind, Layout, Measure, Member, Method, Mixing, resolve


class Friendly(Aggregator):
    """Start + Σ_j w_ij Δ_j, where w_ij falls with the angle between updates: max(cos, 0)^sharpness, normalised."""

    sends: ClassVar[Kind] = "updates"
    measure: ClassVar[Measure] = "rows"

    kind: Literal["friendly"] = "friendly"
    sharpness: Annotated[float, Field(gt=0)] = 1.0

    def mixing(self, products: Tensor, members: Sequence[Member], layout: Layout) -> Mixing:
        """Mix one update per client."""
        gram = products.sum(dim=0)
        lengths = gram.diagonal().sqrt().clamp(min=1e-12)
        weights = (gram / (lengths[:, None] * lengths)).clamp(min=0) ** self.sharpness
        weights += 1e-12 * torch.eye(len(members))  # a client that did not move keeps its own update
        return Mixing("start", (Blend(weights / weights.sum(dim=1, keepdim=True), tuple(range(len(members)))),))


FRIENDLY = Method(encoder=Friendly(), reference="an example")


def main() -> None:
    """Mix three clients: the two that agree share their updates, and the third keeps its own."""
    method = resolve(f"{__file__}:FRIENDLY", {"sharpness": 2})
    assert method.encoder is not None
    updates = {"ann": [1.0, 0.0], "bob": [1.0, 0.0], "eve": [0.0, -1.0]}
    rows, members = torch.tensor(list(updates.values())), [Member(client, "demo") for client in updates]
    products = (rows @ rows.T)[None]  # one matrix per tensor; there is one tensor
    (blend,) = method.encoder.mixing(products, members, Layout(("layer.weight",), ((2, 1),))).blends
    for (client, update), mixed in zip(updates.items(), blend.weights @ rows, strict=True):
        assert torch.allclose(mixed, torch.tensor(update)), (client, mixed)
        print(f"{client} adds {mixed.tolist()}")


if __name__ == "__main__":
    main()
