"""What a client does to an update before it leaves: clipping, and Gaussian noise for differential privacy."""

from collections.abc import Mapping
from math import exp, inf, sqrt
from typing import Annotated

import torch
from pydantic import Field, model_validator
from scipy.optimize import brentq
from scipy.special import log_ndtr
from torch import Tensor

from fedhca2.config import Config
from fedhca2.params import Slot
from fedhca2.seeds import derive


class Privacy(Config):
    """How much of a client's update may show. Nothing is done by default."""

    clip: Annotated[float | None, Field(gt=0, description="largest norm of all that a client sends in a round")] = None
    noise: Annotated[float, Field(ge=0, description="standard deviation of the noise on each number, in clips")] = 0.0

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> "Privacy":
        if self.noise and self.clip is None:
            raise ValueError("noise should come with a clip, which bounds what it has to hide, found none")
        return self

    @property
    def active(self) -> bool:
        """Whether updates are changed at all."""
        return self.clip is not None


def privatise(updates: Mapping[Slot, Tensor], privacy: Privacy, secret: str, round: int) -> dict[Slot, Tensor]:
    r"""Updates as they may leave: $\Delta\cdot\min(1, C/\lVert\Delta\rVert) + \mathcal N(0, \sigma^2C^2)$.

    The norm is that of all rows together, so a round reveals one clipped vector. The noise follows from a secret that
    the client keeps: whoever knows the experiment's seed cannot take it off again.

    >>> privatise({Slot("encoder"): torch.tensor([3.0, 4.0])}, Privacy(clip=1.0), "", round=0)
    {Slot(part='encoder', task=''): tensor([0.6000, 0.8000])}
    """
    if privacy.clip is None or not updates:
        return dict(updates)
    norm = float(torch.stack([update.double().norm() for update in updates.values()]).norm())
    scale = min(1.0, privacy.clip / norm) if norm else 1.0
    clipped = {slot: update * scale for slot, update in updates.items()}
    if not privacy.noise:
        return clipped
    deviation = privacy.noise * privacy.clip
    return {slot: update + deviation * _noise(update, secret, round, slot) for slot, update in clipped.items()}


def _noise(like: Tensor, secret: str, round: int, slot: Slot) -> Tensor:
    generator = torch.Generator().manual_seed(derive(secret, "noise", round, str(slot)))
    return torch.randn(like.shape, generator=generator, dtype=torch.float32).to(like)


def epsilon(noise: float, rounds: int, delta: float = 1e-5) -> float:
    r"""The ε of (ε, δ)-differential privacy after so many rounds, exact for the Gaussian mechanism.

    Rounds compose to one mechanism with $\mu = \sqrt{T}/\sigma$, for which (Balle and Wang, ICML 2018)

    $$\delta(\varepsilon) = \Phi(\mu/2 - \varepsilon/\mu) - e^\varepsilon\,\Phi(-\mu/2 - \varepsilon/\mu).$$

    Neighbours differ in whether a client's updates are there or zero. The server sees who takes part, so that sampling
    clients earns nothing. `audited_epsilon` is what a library says.

    >>> round(epsilon(noise=1.0, rounds=1), 3), round(epsilon(noise=4.0, rounds=100), 3)
    (4.377, 13.207)
    """
    if not rounds:
        return 0.0
    if not noise:
        return inf
    mu = sqrt(rounds) / noise

    def excess(candidate: float) -> float:
        kept = exp(candidate + float(log_ndtr(-mu / 2 - candidate / mu)))
        return exp(float(log_ndtr(mu / 2 - candidate / mu))) - kept - delta

    if excess(0.0) <= 0:
        return 0.0
    highest = 1.0
    while excess(highest) > 0:
        highest *= 2
    return float(brentq(excess, 0.0, highest))


def audited_epsilon(noise: float, rounds: int, delta: float = 1e-5) -> float | None:
    """A bound on the same ε from the Rényi accountant of dp-accounting, where that extra is installed.

    Its other accountant, of privacy loss distributions, is exact too, but takes half a minute at ε = 300 and does not
    come to an end at 5000: a test compares with it where ε is small.
    """
    try:
        from dp_accounting import GaussianDpEvent
        from dp_accounting.rdp import RdpAccountant
    except ImportError:
        return None
    accountant = RdpAccountant()
    accountant.compose(GaussianDpEvent(noise), rounds)
    return float(accountant.get_epsilon(delta))
