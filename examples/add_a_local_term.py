"""A control variate defined outside the package: it corrects each client's steps towards the mean step of all clients.

method: {name: "examples/add_a_local_term.py:CORRECTED", share: 0.3}
"""

from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.methods import Delivery, Kept, Method, Objective, StepMean, resolve


class Corrected(Objective):
    """Subtracts from every step a share of (own mean step − that of all) in the last round."""

    keeps = True
    kind: Literal["corrected"] = "corrected"
    share: Annotated[float, Field(ge=0, le=1)] = 0.5

    def take(self, kept: Kept, row: Tensor, delivery: Delivery) -> tuple[Tensor, Kept]:
        """Keep the mean step of all; the row is the server's."""
        return row, {**kept, "all": delivery.addends[0].row / kept["rate"]}

    def learn(self, kept: Kept, update: Tensor, steps: int, rate: float) -> Kept:
        """Keep the mean step of its own."""
        return {"rate": torch.full((1,), rate, device=update.device), "own": update / steps / rate}

    def drift(self, kept: Kept) -> Tensor | None:
        """What every step subtracts, times the learning rate."""
        return self.share * (kept["own"] - kept["all"]) if "all" in kept else None


CORRECTED = Method(encoder=StepMean(), local=Corrected(), reference="an example")

if __name__ == "__main__":
    local, own, step = resolve(f"{__file__}:CORRECTED").local, torch.tensor([2.0, 0.0]), torch.tensor([0.0, 2.0])
    kept = {"own": own, "all": step}
    print("every step subtracts", local.drift(kept).tolist(), "times the learning rate")  # type: ignore[union-attr]
