"""Settings of secure aggregation, and which methods only need sums."""

from collections.abc import Iterator
from math import ceil
from typing import Annotated

from pydantic import Field

from fedhca2.config import Config
from fedhca2.methods import Method
from fedhca2.params import Part

FARTHEST = 8  # standard deviations that noise practically never exceeds: one value in 10¹⁵ does


class SecureAggregation(Config):
    """The server only gets sums of rows."""

    clip: Annotated[
        float,
        Field(
            ge=1e-6, le=1e6, description="largest value allowed in a row; a client whose row exceeds it sends nothing"
        ),
    ] = 8.0
    threshold: Annotated[
        float, Field(gt=0.5, le=1, description="share of a round's clients needed to unmask anything")
    ] = 0.6
    sketch: Annotated[
        int,
        Field(
            ge=0,
            le=2**16,
            multiple_of=8,
            description="numbers of each update that are sent in the clear, for methods that compare updates",
        ),
    ] = 0
    seconds: Annotated[
        float, Field(gt=0, description="time limit per message of a sum; slower clients are left out")
    ] = 60.0

    def least(self, clients: int) -> int:
        """How many of this number of clients must stay to the end: always a majority.

        >>> [SecureAggregation().least(clients) for clients in (2, 3, 4, 6, 10)]
        [2, 2, 3, 4, 6]
        """
        return max(clients // 2 + 1, ceil(self.threshold * clients - 1e-9))

    def faults(self, method: Method, deviation: float) -> Iterator[str]:
        """Explain why a method, or noise of this deviation, cannot be combined with it, one line per reason."""
        if self.clip < FARTHEST * deviation:
            yield (
                f"secure_aggregation.clip: should be at least {FARTHEST * deviation:g}, {FARTHEST} standard "
                f"deviations of the noise on each value, found {self.clip:g}"
            )
        for part, aggregator in method.all_aggregators.items():
            if aggregator.reveals_rows:
                yield (
                    f"secure_aggregation: does not work with {aggregator.kind} for method.{part}, "
                    f"{aggregator.reveals_rows}; {part} should be null, mean or group_mean"
                )
            elif aggregator.measure != "nothing" and not self.sketch:
                yield (
                    f"secure_aggregation.sketch: should be a number such as 1024, since {aggregator.kind} for "
                    f"method.{part} needs inner products of rows; docs/many-machines.md says what sketches reveal"
                )
        if method.batch_norm == "average":
            yield "secure_aggregation: does not work with method.batch_norm 'average': variances have no upper bound"

    def sketched(self, method: Method) -> frozenset[Part]:
        """The parts whose sketches the server gets."""
        return frozenset(part for part, aggregator in method.all_aggregators.items() if aggregator.measure != "nothing")
