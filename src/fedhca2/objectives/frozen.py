"""FedBABU: only the encoder is trained, and the rest after the last round."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedhca2.objectives.objective import Objective
from fedhca2.params import Part


class Frozen(Objective):
    """Decoders and heads stay as initialised, the same for all clients of a task; a last fine-tuning trains everything.

    The running statistics of their normalisation stay as well.
    """

    frozen: ClassVar[frozenset[Part]] = frozenset({"decoder", "decoder_norms", "head"})

    kind: Literal["frozen"] = "frozen"
    fine_tune_epochs: Annotated[int, Field(ge=0, description="epochs on the whole model after the last round")] = 5

    @property
    def final_epochs(self) -> int:
        """The epochs of fine-tuning."""
        return self.fine_tune_epochs
