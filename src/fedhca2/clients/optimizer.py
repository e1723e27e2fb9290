"""A client's optimiser, the lifetime of its moments, and the learning rate of every epoch."""

from collections.abc import Iterable
from math import cos, pi
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedhca2.config import Config

KINDS: dict[str, type[torch.optim.Adam]] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


class OptimizerConfig(Config):
    """AdamW, or Adam, which adds the weight decay to the gradient."""

    kind: Annotated[Literal["adamw", "adam"], Field(description="the algorithm")] = "adamw"
    amsgrad: Annotated[bool, Field(description="divide by the largest second moment so far, not the last")] = False
    reset: Annotated[Literal["never", "every_round"], Field(description="when moments and steps are reset")] = "never"

    def build(
        self, parameters: Iterable[nn.Parameter], rate: float | Tensor, weight_decay: float, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """Build an optimiser; `capturable` as part of a CUDA graph."""
        return KINDS[self.kind](
            parameters, lr=rate, weight_decay=weight_decay, amsgrad=self.amsgrad, fused=True, capturable=capturable
        )


class Schedule(Config):
    """A linear warm-up, then half a cosine down to `lowest`, or steps down by `decay`."""

    warmup_epochs: Annotated[int, Field(ge=0, description="epochs of the warm-up")] = 5
    warmup_from: Annotated[float, Field(ge=0, description="rate at the start of the warm-up")] = 1.25e-7
    lowest: Annotated[float, Field(ge=0, description="rate at the end")] = 1.25e-6
    lag: Annotated[bool, Field(description="use the rate of the epoch before, as in the authors' code")] = True

    decay: Annotated[float | None, Field(gt=0, le=1, description="factor per step, instead of the cosine")] = None
    decay_every: Annotated[int, Field(ge=1, description="epochs between steps of `decay`")] = 1

    def rate(self, epoch: int, epochs: int, peak: float) -> float:
        """The learning rate of one of this many epochs.

        >>> [Schedule().rate(epoch, 10, 1e-4) for epoch in (0, 1, 6)]
        [1.25e-07, 1.25e-07, 0.0001]
        >>> Schedule(warmup_epochs=0, lag=False, decay=0.5, decay_every=2).rate(5, 10, 1e-4)
        2.5e-05
        """
        step = max(epoch - 1, 0) if self.lag else epoch
        if step < self.warmup_epochs:
            return self.warmup_from + step * (peak - self.warmup_from) / self.warmup_epochs
        if self.decay is not None:
            return max(peak * self.decay ** ((step - self.warmup_epochs) // self.decay_every), self.lowest)
        progress = (step - self.warmup_epochs) / max(epochs - self.warmup_epochs, 1)
        return self.lowest + 0.5 * (peak - self.lowest) * (1 + cos(pi * min(progress, 1.0)))
