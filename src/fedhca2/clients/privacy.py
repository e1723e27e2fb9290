"""What a client does to an update before it leaves: clipping, and Gaussian noise for differential privacy."""

from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from math import frexp, isfinite, ldexp, sqrt
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor

from fedhca2.clients.accounting import LEAST, epsilon
from fedhca2.config import Config
from fedhca2.params import Slot

KEY_BYTES = 32
ALMOST = 1 - 2.0**-20  # of the clip: a norm in float64 is nearer than that to the true one, for up to 2³² values
STEP_BITS = 24  # a deviation has between 2²⁴ and 2²⁵ steps
PIECE = 2**16  # values at a time


class Privacy(Config):
    """How much of a client's update may show. Nothing is done by default."""

    clip: Annotated[
        float | None, Field(ge=1e-20, le=1e20, description="largest norm of all that a client sends in a round")
    ] = None
    noise: Annotated[
        float, Field(ge=0, le=1e9, description="standard deviation of the noise on each number, in clips")
    ] = 0.0

    @model_validator(mode="after")
    def _noise_needs_a_clip(self) -> "Privacy":
        if self.noise and self.clip is None:
            raise ValueError("noise should come with a clip, which bounds what it has to hide, found none")
        if 0 < self.noise < LEAST:
            raise ValueError(
                f"noise should be 0, or at least {LEAST:g}, where one update costs an ε of {epsilon(LEAST):,.0f}; "
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
        """What every noised number is a multiple of: a power of two, 2²⁴ to 2²⁵ of which make a deviation."""
        return ldexp(1.0, frexp(self.deviation)[1] - 1 - STEP_BITS)

    def stricter(self, other: "Privacy") -> "Privacy":
        """The smaller clip and the larger noise of two.

        >>> Privacy(clip=1.0, noise=2.0).stricter(Privacy(clip=0.5))
        Privacy(clip=0.5, noise=2.0)
        """
        clips = [each.clip for each in (self, other) if each.clip is not None]
        return Privacy(clip=min(clips, default=None), noise=max(self.noise, other.noise))


def privatise(updates: Mapping[Slot, Tensor], privacy: Privacy, key: bytes, round: int) -> dict[Slot, Tensor]:
    r"""Updates as they may leave: $\Delta\cdot\min(1, C/\lVert\Delta\rVert) + \mathcal N(0, \sigma^2C^2)$.

    The norm is that of all rows together, so a round reveals one clipped vector.

    >>> privatise({Slot("encoder"): torch.tensor([3.0, 4.0])}, Privacy(clip=1.0), b"", round=0)
    {Slot(part='encoder', task=''): tensor([0.6000, 0.8000])}
    """
    if privacy.clip is None or not updates:
        return dict(updates)
    if privacy.noise:
        rows = dict(sorted(updates.items()))
        return _noised(rows, privacy, scale_within(privacy.clip, rows.values()), key, round)
    norm = float(torch.stack([update.double().norm() for update in updates.values()]).norm())
    scale = min(1.0, privacy.clip / norm) if norm else 1.0
    return {slot: update * scale for slot, update in updates.items()}


def _noised(rows: Mapping[Slot, Tensor], privacy: Privacy, scale: float, key: bytes, round: int) -> dict[Slot, Tensor]:
    """The scaled update in whole steps of a lattice that no data decide on, plus whole steps of noise.

    The noise comes from the key, the round and these very steps. So an update has the same noise whenever it is sent
    again, and another update has unrelated noise: no two that are sent tell the difference of what they hide.
    """
    from fedhca2.clients.noise import Noise  # which brings a compiler along

    if len(key) != KEY_BYTES:
        raise ValueError(f"a key should have {KEY_BYTES} bytes, found {len(key)}")
    step, deviation = privacy.step, privacy.deviation
    hidden = blake2b(key=key, digest_size=KEY_BYTES, person=b"fedhca2 noise")
    hidden.update(repr((round, deviation, [(str(slot), row.numel()) for slot, row in rows.items()])).encode())
    for row in rows.values():
        for steps in in_steps(row, scale, step):
            hidden.update(steps.data)
    noise = Noise(hidden.digest(), deviation / step)

    def sent(row: Tensor) -> Tensor:
        noised = ((steps + noise.draw(len(steps))) * step for steps in in_steps(row, scale, step))
        return torch.cat([torch.from_numpy(piece).to(row.dtype) for piece in noised]).to(row.device)

    return {slot: sent(row) for slot, row in rows.items()}


def scale_within(clip: float, rows: Iterable[Tensor]) -> float:
    """The factor after which all rows together are no longer than the clip, whatever rounding did to their norm."""
    norm = sqrt(sum(float(np.square(piece).sum()) for row in rows for piece in _pieces(row)))
    if not isfinite(norm):
        raise ValueError("an update should be finite to be clipped, found NaN or infinite values")
    return min(1.0, ALMOST * clip / norm) if norm else 1.0


def in_steps(row: Tensor, scale: float, step: float) -> Iterator[NDArray[np.int64]]:
    """A scaled row in whole steps, piece by piece; cut off towards zero, so that it does not become longer."""
    return ((piece * (scale / step)).astype(np.int64) for piece in _pieces(row))


def _pieces(row: Tensor) -> Iterator[NDArray[np.float64]]:
    return (piece.double().numpy() for piece in torch.split(row.detach().cpu(), PIECE))
