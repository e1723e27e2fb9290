"""The settings of privacy: how much of a client's update is clipped, and how much noise it gets."""

from math import frexp, ldexp
from typing import Annotated

from pydantic import Field, model_validator

from fedhca2.clients.accounting import LEAST, epsilon
from fedhca2.config import Config

STEP_BITS = 24  # a standard deviation has between 2²⁴ and 2²⁵ steps


class Privacy(Config):
    """How much of a client's update is hidden; nothing by default."""

    clip: Annotated[
        float | None, Field(ge=1e-20, le=1e20, description="largest norm of everything a client sends in a round")
    ] = None
    noise: Annotated[
        float, Field(ge=0, le=1e9, description="standard deviation of the noise on each number, in clips")
    ] = 0.0

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> "Privacy":
        if self.noise and self.clip is None:
            raise ValueError("noise should come with a clip, which bounds what the noise hides, found none")
        if 0 < self.noise < LEAST:
            raise ValueError(
                f"noise should be 0, or at least {LEAST:g}, with which one update costs an ε of {epsilon(LEAST):,.0f}; "
                f"found {self.noise:g}"
            )
        return self

    @property
    def active(self) -> bool:
        """Whether updates are changed at all."""
        return self.clip is not None

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise on each number."""
        return self.noise * (self.clip or 0.0)

    @property
    def step(self) -> float:
        """The unit of every noised number: a power of two; a standard deviation has 2²⁴ to 2²⁵ of them."""
        return ldexp(1.0, frexp(self.deviation)[1] - 1 - STEP_BITS)

    def stricter(self, other: "Privacy") -> "Privacy":
        """Combine the smaller clip and the larger noise of two settings.

        >>> Privacy(clip=1.0, noise=2.0).stricter(Privacy(clip=0.5))
        Privacy(clip=0.5, noise=2.0)
        """
        clips = [each.clip for each in (self, other) if each.clip is not None]
        return Privacy(clip=min(clips, default=None), noise=max(self.noise, other.noise))
