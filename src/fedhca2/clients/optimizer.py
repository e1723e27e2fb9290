"""Which optimiser a client trains with, and how long its moments last."""

from collections.abc import Iterable
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedhca2.config import Config

KINDS: dict[str, type[torch.optim.Adam]] = {"adamw": torch.optim.AdamW, "adam": torch.optim.Adam}


class OptimizerConfig(Config):
    """AdamW, or Adam, which adds the weight decay to the gradient."""

    kind: Literal["adamw", "adam"] = "adamw"
    amsgrad: Annotated[bool, Field(description="divide by the largest second moment so far, not by the last")] = False
    reset: Annotated[
        Literal["never", "every_round"], Field(description="when moments and their count of steps begin anew")
    ] = "never"

    def build(
        self, parameters: Iterable[nn.Parameter], rate: float | Tensor, weight_decay: float, *, capturable: bool = False
    ) -> torch.optim.Optimizer:
        """An optimiser that has not stepped yet; `capturable` as part of a CUDA graph."""
        return KINDS[self.kind](
            parameters, lr=rate, weight_decay=weight_decay, amsgrad=self.amsgrad, fused=True, capturable=capturable
        )
