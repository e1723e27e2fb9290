"""Settings of checkpoints, of the guard, of who takes part in which round, and of measuring who helps whom."""

from collections.abc import Iterable, Sequence
from math import ceil
from typing import Annotated

from pydantic import Field

from fedhca2.config import Config
from fedhca2.seeds import derive


class CheckpointPlan(Config):
    """When the whole federation is saved to the run's folder."""

    every: Annotated[int, Field(ge=0, description="rounds between checkpoints; 0: only when a run is interrupted")] = 1
    keep: Annotated[int, Field(ge=1, description="number of latest checkpoints to keep")] = 2
    memory: Annotated[
        float | None,
        Field(
            ge=0,
            description="GB of states to keep in memory beside those of clients at work; others wait in files; by "
            "default a quarter of the free memory",
        ),
    ] = None


class GuardBounds(Config):
    """Bounds beyond which the server refuses well-formed replies."""

    reach: Annotated[
        float,
        Field(ge=0, description="largest move of a row, as a share of the most its steps can move it; 0: no bound"),
    ] = 1.0
    jump: Annotated[
        float,
        Field(ge=0, description="largest move, as a multiple of the client's own recent largest move; 0: no bound"),
    ] = 10.0
    noise: Annotated[
        float, Field(ge=0, description="standard deviation of the noise that sites may add to each value on their own")
    ] = 0.0
    window: Annotated[int, Field(ge=1, description="how many of a client's accepted rounds count as recent")] = 8
    images: dict[str, Annotated[int, Field(ge=1)]] = Field(
        default_factory=dict,
        description="most training images of a client, by name; others are believed to have up to twice the median",
    )


class Participation(Config):
    """Which clients take part in a round: a fraction of those that are available."""

    fraction: Annotated[
        float, Field(gt=0, le=1, description="share of the available clients that take part in a round")
    ] = 1.0
    availability: dict[str, Annotated[float, Field(ge=0, le=1)]] = Field(
        default_factory=dict, description="probability that a client is available; 1 by default"
    )

    def choose(self, clients: Iterable[str], round: int, seed: int) -> list[str]:
        """Choose the clients of one round, in their order; depends only on the arguments.

        >>> Participation(fraction=0.5).choose(["a", "b", "c", "d"], round=0, seed=0)
        ['a', 'd']
        """
        there = [client for client in clients if self._is_there(client, round, seed)]
        count = ceil(self.fraction * len(there) - 1e-9)
        asked = set(sorted(there, key=lambda client: derive(seed, "participation", round, client))[:count])
        return [client for client in there if client in asked]

    def _is_there(self, client: str, round: int, seed: int) -> bool:
        return derive(seed, "availability", round, client) < self.availability.get(client, 1.0) * 2**63


class Diagnostics(Config):
    """Measures, in some rounds, what clients' updates do for each other. It changes nothing in the training."""

    every: Annotated[int, Field(ge=1, description="rounds between measurements")] = 10
    clients: Annotated[
        int | None, Field(ge=2, description="most clients whose pairs are measured, chosen by seed; by default all")
    ] = None
    images: Annotated[
        int | None, Field(ge=1, description="most validation images of a client, evenly spread; by default all")
    ] = None

    def choose(self, clients: Iterable[str], seed: int) -> list[str]:
        """Choose the clients whose pairs are measured, sorted by name; as far as possible the same in every round.

        >>> Diagnostics(clients=2).choose(["d", "c", "b", "a"], seed=0)
        ['b', 'd']
        """
        drawn = sorted(clients, key=lambda client: derive(seed, "diagnostics", client))
        return sorted(drawn[: self.clients])

    def spread(self, images: Sequence[int]) -> Sequence[int]:
        """Choose the images to measure losses on.

        >>> Diagnostics(images=3).spread(range(9)), Diagnostics().spread([4, 5])
        ([0, 3, 6], [4, 5])
        """
        count = min(self.images or len(images), len(images))
        return [images[i * len(images) // count] for i in range(count)]
