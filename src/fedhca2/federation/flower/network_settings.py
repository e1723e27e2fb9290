"""How long and for how many clients the server waits, the wire format of rows, and where they are kept."""

from typing import Annotated

from pydantic import Field

from fedhca2.config import Config
from fedhca2.federation.flower.records import Wire


class NetworkSettings(Config):
    """Deadlines and quorum of a federation over a network."""

    deadline: Annotated[
        float | None, Field(gt=0, description="seconds per round, from its orders to the last reply; none: no limit")
    ] = 3600
    min_clients: Annotated[int | None, Field(ge=1, description="replies a round needs; by default all clients'")] = None
    retries: Annotated[int, Field(ge=0, description="how often a failed order is repeated")] = 2
    wire: Annotated[Wire, Field(description="wire format of rows; float32 is lossless")] = "float32"
    spool: Annotated[bool, Field(description="keep replies in files in the run's folder until they are used")] = False
    named: Annotated[
        bool, Field(description="identify sites by their keys; in a simulation, which has none, by what they say")
    ] = True
    await_refused: Annotated[
        bool, Field(description="wait for sites that refuse or are refused: they may come back with other settings")
    ] = True
    poll: Annotated[float, Field(gt=0, description="seconds between checks for replies")] = 0.2
