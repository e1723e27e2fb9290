"""FedAMP: train towards a personal mixture of all models."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedhca2.objectives.objective import Anchor, Objective


class Attracted(Objective):
    """Loss + (λ/2α)·‖w − u‖², where u is what the server sent; w itself is not replaced."""

    anchor: ClassVar[Anchor] = "received"

    kind: Literal["attracted"] = "attracted"
    lam: Annotated[float, Field(ge=0, description="λ, strength of the regulariser")] = 1.0
    alpha: Annotated[float, Field(gt=0, description="α_k, the step of the server's attention")] = 1.0

    @property
    def pull(self) -> float:
        """λ/α."""
        return self.lam / self.alpha
