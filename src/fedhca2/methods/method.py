"""A method: how encoders, decoders and heads are aggregated, and what local training adds."""

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, SerializeAsAny, model_validator

from fedhca2.aggregation import Aggregator, HyperWeights
from fedhca2.config import Config
from fedhca2.messages import BatchNorm, Kind
from fedhca2.objectives import HeadsFirst, Objective
from fedhca2.params import STATISTICS, Part


class Method(Config):
    """A federated method as a value. A part without an aggregator stays with its client.

    >>> from fedhca2.methods import Mean
    >>> Method(encoder=Mean()).uploads(round=0)  # what the built-in method fedper does
    {'encoder': 'parameters'}

    :param encoder: the aggregator that mixes the clients' encoders.
    :param decoder: the same for decoders, of all tasks together.
    :param head: the same for heads, of equal tasks and classes.
    :param local: what the method adds to local training.
    :param weights: how learned weights, such as FedHCA²'s α and β, are learned.
    :param reference: the paper, for `fedhca2 methods`.
    """

    encoder: SerializeAsAny[Aggregator] | None = None
    decoder: SerializeAsAny[Aggregator] | None = None
    head: SerializeAsAny[Aggregator] | None = None
    local: SerializeAsAny[Objective] = Objective()
    weights: HyperWeights = HyperWeights()
    batch_norm: Annotated[
        BatchNorm, Field(description="running statistics stay local, are mixed like parameters, or are measured again")
    ] = "local"
    norms: Annotated[
        Literal["shared", "local"],
        Field(description="parameters of normalisation layers are aggregated with their part, or stay local"),
    ] = "shared"
    reference: str = ""
    rounds: Annotated[int | None, Field(ge=1, exclude=True, description="rounds of the run, if known")] = None

    @model_validator(mode="after")
    def _parts_fit_together(self) -> "Method":
        if not self.local.replaces and self.batch_norm != "local":
            raise ValueError(
                f"batch_norm: expected 'local', since clients keep their own parameters, got {self.batch_norm!r}"
            )
        if self.norms == "local" and self.batch_norm == "average":
            raise ValueError("batch_norm: expected 'local' or 'recalibrate', since norms stay local, got 'average'")
        if self.local.keeps and any(aggregator.sends != "updates" for aggregator in self.all_aggregators.values()):
            raise ValueError(f"local: {self.local.kind}: expected aggregators of updates, got one of parameters")
        if isinstance(self.local, HeadsFirst) and (self.decoder or self.head):
            raise ValueError("decoder and head: expected null, since they train before the encoder, got an aggregator")
        return self

    @property
    def all_aggregators(self) -> Mapping[Part, Aggregator]:
        """The aggregators of all parts that have one."""
        parts: dict[Part, Aggregator | None] = {"encoder": self.encoder, "decoder": self.decoder, "head": self.head}
        return {part: found for part, found in parts.items() if found}

    def over(self, rounds: int) -> Self:
        """The same method in a run of this many rounds: some aggregators change along the way."""
        return self.model_copy(update={"rounds": rounds})

    def aggregators(self, round: int) -> Mapping[Part, Aggregator]:
        """The aggregators of this round (counted from 0), in their state at that point of the run."""
        done = min(1.0, round / self.rounds) if self.rounds else 0.0
        return {
            part: aggregator.at(done)
            for part, aggregator in self.all_aggregators.items()
            if (round + 1) % aggregator.every == 0
        }

    def uploads(self, round: int) -> Mapping[Part, Kind]:
        """The parts that every client sends after training in this round."""
        sent: dict[Part, Kind] = {part: aggregator.sends for part, aggregator in self.aggregators(round).items()}
        if self.batch_norm == "average":
            sent |= {norms: "parameters" for part, norms in STATISTICS.items() if part in sent}
        return sent
