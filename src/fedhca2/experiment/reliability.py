"""How a run is kept safe, and who takes part in which round, as a config says it."""

from collections.abc import Iterable
from math import ceil
from typing import Annotated

from pydantic import Field

from fedhca2.config import Config
from fedhca2.seeds import derive


class CheckpointPlan(Config):
    """When the whole federation is written to the run's folder."""

    every: Annotated[int, Field(ge=0, description="rounds between checkpoints; 0: only when a run is interrupted")] = 1
    keep: Annotated[int, Field(ge=1, description="how many of the latest stay on the disk")] = 2


class GuardBounds(Config):
    """Which replies the server refuses although their form is right."""

    reach: Annotated[
        float,
        Field(ge=0, description="largest move of a row, as a share of what its steps can move at most; 0: no bound"),
    ] = 1.0
    jump: Annotated[
        float, Field(ge=0, description="largest move, in multiples of the client's own recent largest; 0: no bound")
    ] = 10.0
    window: Annotated[int, Field(ge=1, description="accepted rounds of a client that count as recent")] = 8


class Participation(Config):
    """Which clients take part in a round: those that happen to be there, and a fraction of these."""

    fraction: Annotated[float, Field(gt=0, le=1, description="share of the clients that are asked in a round")] = 1.0
    availability: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict, description="how often a client is there; 1 by default"
    )

    def choose(self, clients: Iterable[str], round: int, seed: int) -> list[str]:
        """The clients of one round, in their order; this depends on nothing but the arguments.

        >>> Participation(fraction=0.5).choose(["a", "b", "c", "d"], round=0, seed=0)
        ['a', 'd']
        """
        there = [client for client in clients if self._is_there(client, round, seed)]
        count = ceil(self.fraction * len(there) - 1e-9)
        asked = sorted(there, key=lambda client: derive(seed, "participation", round, client))[:count]
        return [client for client in there if client in asked]

    def _is_there(self, client: str, round: int, seed: int) -> bool:
        return derive(seed, "availability", round, client) < self.availability.get(client, 1.0) * 2**63
