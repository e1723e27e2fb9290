"""Ditto: a personal model beside the copy that is shared."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedhca2.objectives.objective import Anchor, Objective


class PersonalCopy(Objective):
    """A copy w trains as in FedAvg; the personal v trains with loss + (λ/2)·‖v − w_received‖² and is what counts."""

    anchor: ClassVar[Anchor] = "start"
    own_copy: ClassVar[bool] = True

    kind: Literal["personal_copy"] = "personal_copy"
    lam: Annotated[float, Field(ge=0, description="λ, the pull of the personal model towards the shared one")] = 0.1

    @property
    def pull(self) -> float:
        """λ."""
        return self.lam
