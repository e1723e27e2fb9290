"""A method defined outside the package, whose server keeps a row between rounds: slow weights.

    method: {name: "examples/keep_rows.py:SLOW", share: 0.3}

Run this file to check it.
"""

from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor

from fedhca2.methods import Mean, Method


class SlowWeights(Mean):
    """Encoders get a moving average of the means of all rounds, x ← x + share · (mean − x)."""

    keeps_rows: ClassVar[int] = 1

    kind: str = "slow_weights"  # type: ignore[assignment]
    share: Annotated[float, Field(gt=0, le=1)] = 0.5

    def renew(self, mixed: Tensor, kept: Tensor) -> tuple[Tensor, Tensor]:
        """What members get instead of the mean, and the row to keep; none is kept at first."""
        x = kept + self.share * (mixed - kept) if len(kept) else mixed
        return x, x


SLOW = Method(encoder=SlowWeights(), reference="an example")

if __name__ == "__main__":
    kept = torch.empty(0, 2)
    for mean in (torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 2.0]]), torch.tensor([[1.0, 2.0]])):
        sent, kept = SlowWeights().renew(mean, kept)
    print(f"all get {sent[0].tolist()}")
