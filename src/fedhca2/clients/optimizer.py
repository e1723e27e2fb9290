"""A client's optimiser, the lifetime of its moments, and the learning rate of every epoch."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from math import cos, pi
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from fedhca2.config import Config

BETAS = (0.9, 0.999)  # how much of the moments stays in each step
EPSILON = 1e-8


class OptimizerConfig(Config):
    """AdamW, or Adam, which adds the weight decay to the gradient."""

    kind: Annotated[Literal["adamw", "adam"], Field(description="the algorithm")] = "adamw"
    amsgrad: Annotated[bool, Field(description="divide by the largest second moment so far, not the last")] = False
    reset: Annotated[Literal["never", "every_round"], Field(description="when moments and steps are reset")] = "never"

    def build(self, parameters: Iterable[nn.Parameter], rate: float | Tensor, weight_decay: float) -> "Adam":
        """Build an optimiser of these parameters."""
        return Adam(list(parameters), rate, weight_decay, self)


@dataclass
class Adam:
    """torch's fused kernels of Adam and AdamW, with the numbers of its classes.

    The classes themselves import torch's compiler before their first step, which takes 2 seconds.
    """

    parameters: Sequence[nn.Parameter]
    rate: float | Tensor
    weight_decay: float
    config: OptimizerConfig
    state: dict[nn.Parameter, dict[str, Tensor]] = field(default_factory=lambda: defaultdict(dict))

    def zero_grad(self) -> None:
        """Forget the gradients."""
        for parameter in self.parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have gradients."""
        trained = [parameter for parameter in self.parameters if parameter.grad is not None]
        for dtype in dict.fromkeys(parameter.dtype for parameter in trained):
            self._step([parameter for parameter in trained if parameter.dtype == dtype])

    def _step(self, parameters: list[nn.Parameter]) -> None:
        """Update parameters of one type."""
        moments = ("exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if self.config.amsgrad else []))
        for parameter in parameters:
            if not self.state[parameter]:
                step = torch.zeros((), dtype=torch.float32, device=parameter.device)
                self.state[parameter] = {"step": step, **{name: torch.zeros_like(parameter) for name in moments}}
        held = {name: [self.state[parameter][name] for parameter in parameters] for name in ("step", *moments)}
        torch._foreach_add_(held["step"], 1)
        kernel: Any = torch._fused_adamw_ if self.config.kind == "adamw" else torch._fused_adam_
        kernel(
            parameters,
            [parameter.grad for parameter in parameters],
            held["exp_avg"],
            held["exp_avg_sq"],
            held.get("max_exp_avg_sq", []),
            held["step"],
            amsgrad=self.config.amsgrad,
            lr=self.rate,
            beta1=BETAS[0],
            beta2=BETAS[1],
            weight_decay=self.weight_decay,
            eps=EPSILON,
            maximize=False,
        )


class Schedule(Config):
    """A linear warm-up, then half a cosine down to `lowest`, or steps down by `decay`."""

    warmup_epochs: Annotated[int, Field(ge=0, description="epochs of the warm-up")] = 5
    warmup_from: Annotated[float, Field(ge=0, description="rate at the start of the warm-up")] = 1.25e-7
    lowest: Annotated[float, Field(ge=0, description="rate at the end")] = 1.25e-6
    lag: Annotated[bool, Field(description="use the previous epoch's rate, as the authors' code does")] = True

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
