"""FedProx: stay near the model that the round started from."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedhca2.objectives.objective import Anchor, Objective


class Proximal(Objective):
    """Loss + (μ/2)·‖θ − θ_received‖² over encoder and decoders."""

    anchor: ClassVar[Anchor] = "start"

    kind: Literal["proximal"] = "proximal"
    mu: Annotated[float, Field(ge=0, description="strength of the pull towards the received model")] = 0.01

    @property
    def pull(self) -> float:
        """μ."""
        return self.mu
