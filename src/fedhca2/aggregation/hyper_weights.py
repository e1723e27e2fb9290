"""The weights α and β that FedHCA² learns, with one step of SGD in closed form."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field

from fedhca2.config import Config


@dataclass(frozen=True)
class Weights:
    """The learned weights of one slot of one client, and the momentum of each."""

    value: tuple[float, ...]
    momentum: tuple[float, ...]

    @classmethod
    def start(cls, value: Sequence[float]) -> "Weights":
        """Initial weights."""
        return cls(tuple(value), (0.0,) * len(value))

    @property
    def applied(self) -> tuple[float, ...]:
        """The values clamped to [0, 1], as they are applied."""
        return tuple(min(max(value, 0.0), 1.0) for value in self.value)


class HyperWeights(Config):
    """How α and β are learned: SGD on the agreement of a client's update with what it was sent."""

    lr: Annotated[float, Field(ge=0, description="learning rate of α and β")] = 0.01
    momentum: Annotated[float, Field(ge=0, lt=1, description="of their SGD")] = 0.9
    weight_decay: Annotated[float, Field(ge=0, description="of their SGD")] = 1e-4
    clamp: Annotated[
        Literal["mask", "project"], Field(description="values may leave [0, 1] and drift, or are kept inside")
    ] = "mask"
    learn: Annotated[bool, Field(description="false keeps the initial α and β")] = True

    def step(self, weights: Weights, agreement: Sequence[float]) -> Weights:
        r"""One step for weights w and agreement ⟨Ũ, Δ⟩ (per layer for β), FedHCA² Eq. (14) to (17).

        $$g = -\langle \tilde U, \Delta \rangle \cdot 1[0 \le w \le 1] + \lambda w, \quad m \leftarrow \mu m + g, \quad
        w \leftarrow w - \eta m$$

        >>> HyperWeights(weight_decay=0).step(Weights.start([0.1]), [1.0])
        Weights(value=(0.11,), momentum=(-1.0,))
        """
        if not self.learn:
            return weights
        pairs = [self._step(*each) for each in zip(weights.value, weights.momentum, agreement, strict=True)]
        return Weights(tuple(value for value, _ in pairs), tuple(momentum for _, momentum in pairs))

    def _step(self, value: float, momentum: float, agreement: float) -> tuple[float, float]:
        gradient = -agreement if 0 <= value <= 1 else 0.0
        momentum = self.momentum * momentum + gradient + self.weight_decay * value
        value -= self.lr * momentum
        if self.clamp == "project" and not 0 <= value <= 1:
            return min(max(value, 0.0), 1.0), 0.0
        return value, momentum
