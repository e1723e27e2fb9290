"""Secure aggregation, as a config says it, and which methods can do with sums."""

from collections.abc import Iterator
from math import ceil
from typing import Annotated

from pydantic import Field

from fedhca2.config import Config
from fedhca2.methods import Method
from fedhca2.params import Part

FARTHEST = 8  # deviations that noise does not reach: one of 10¹⁵ values does


class SecureAggregation(Config):
    """The server gets sums of rows, and never a row."""

    clip: Annotated[
        float, Field(ge=1e-6, le=1e6, description="largest value of a row; a client that has a larger one sends none")
    ] = 8.0
    threshold: Annotated[
        float, Field(gt=0.5, le=1, description="share of a round's clients without which nothing can be unmasked")
    ] = 0.6
    sketch: Annotated[
        int,
        Field(
            ge=0,
            le=2**16,
            multiple_of=8,
            description="numbers of each update in the clear, for methods that compare them",
        ),
    ] = 0
    seconds: Annotated[float, Field(gt=0, description="for each message of a sum; who takes longer is left out")] = 60.0

    def least(self, clients: int) -> int:
        """How many of so many clients have to stay to the end: always a majority.

        >>> [SecureAggregation().least(clients) for clients in (2, 3, 4, 6, 10)]
        [2, 2, 3, 4, 6]
        """
        return max(clients // 2 + 1, ceil(self.threshold * clients - 1e-9))

    def faults(self, method: Method, deviation: float) -> Iterator[str]:
        """Why a method, and noise of this deviation, cannot go with it, a line for each reason."""
        if self.clip < FARTHEST * deviation:
            yield (
                f"secure_aggregation.clip: should be at least {FARTHEST * deviation:g}, {FARTHEST} deviations of the "
                f"noise on each value, found {self.clip:g}"
            )
        for part, aggregator in method.all_aggregators.items():
            if aggregator.tells_rows:
                yield (
                    f"secure_aggregation: cannot go with {aggregator.kind} for method.{part}, {aggregator.tells_rows}; "
                    f"{part} should be null, mean or group_mean"
                )
            elif aggregator.measure != "nothing" and not self.sketch:
                yield (
                    f"secure_aggregation.sketch: should be a number such as 1024, since {aggregator.kind} for "
                    f"method.{part} needs inner products of rows; docs/many-machines.md says what sketches tell"
                )
        if method.batch_norm == "average":
            yield "secure_aggregation: cannot go with method.batch_norm 'average': variances have no largest value"

    def sketched(self, method: Method) -> frozenset[Part]:
        """The parts of which the server gets sketches."""
        return frozenset(part for part, found in method.all_aggregators.items() if found.measure != "nothing")
