"""How long the server waits, for how many, what rows look like on the wire, and where they are kept."""

from typing import Annotated

from pydantic import Field

from fedhca2.config import Config
from fedhca2.federation.flower.records import Wire


class NetworkSettings(Config):
    """Deadlines and quorum of a federation over a network."""

    deadline: Annotated[
        float | None, Field(gt=0, description="seconds for a round, from its orders to the last reply; none: no end")
    ] = 3600
    min_clients: Annotated[int | None, Field(ge=1, description="replies a round needs; by default all clients'")] = None
    retries: Annotated[int, Field(ge=0, description="how often an order that failed is given again")] = 2
    wire: Annotated[Wire, Field(description="how rows travel; float32 loses nothing")] = "float32"
    spool: Annotated[bool, Field(description="keep replies in files of the run's folder until they are used")] = False
    named: Annotated[
        bool, Field(description="sites are known by their keys; in a simulation, which has none, by what they say")
    ] = True
    poll: Annotated[float, Field(gt=0, description="seconds between two looks for replies")] = 0.2
