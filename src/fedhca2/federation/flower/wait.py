"""Waiting for sites: deadlines and quorum, lost messages, and a log line that names those that are waited for."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

from pydantic import Field

from fedhca2.config import Config
from fedhca2.federation.flower.records import Wire

# A message without an answer is taken for lost this many seconds, and three times as long as the slowest other took,
# after it was sent.
LOST_AFTER, TIMES_AS_LONG = 60.0, 3
TELL_AFTER = 60.0  # seconds of waiting until it is logged; twice as long every time after
log = logging.getLogger("fedhca2.server")


class NetworkSettings(Config):
    """How long and for how many clients the server waits, the wire format of rows, and where they are stored."""

    deadline: float | None = Field(
        3600, gt=0, description="seconds per round, from its orders to the last reply; none: no limit"
    )
    min_clients: int | None = Field(None, ge=1, description="replies a round needs; by default all clients'")
    retries: int = Field(2, ge=0, description="how often a failed order is repeated")
    wire: Wire = Field("float32", description="wire format of rows; float32 is lossless")
    spool: bool = Field(False, description="keep replies in files in the run's folder until they are used")
    named: bool = Field(
        True, description="identify sites by their keys; in a simulation, which has none, by what they say"
    )
    await_refused: bool = Field(
        True, description="wait for sites that refuse or are refused: they may come back with other settings"
    )
    poll: float = Field(0.2, gt=0, description="seconds between checks for replies")


class TooFewClientsError(RuntimeError):
    """Fewer clients than required; the run can be resumed when they are back."""


class Wait:
    """One period of waiting, with or without a deadline."""

    def __init__(self, deadline: float | None) -> None:
        """:param deadline: seconds from now, if any."""
        began = monotonic()
        self.end = began + (math.inf if deadline is None else deadline)
        self._pause, self._next = TELL_AFTER, began + TELL_AFTER

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return monotonic() >= self.end

    def tell(self, whom: Mapping[str, str]) -> None:
        """Log from time to time who is waited for, and why."""
        if whom and monotonic() >= self._next:
            self._pause *= 2
            self._next = monotonic() + self._pause
            log.warning("waiting for %s", by_reason(whom))


@dataclass
class Transmission:
    """A message for a node, which is sent again, at growing intervals, for as long as there is no answer.

    Flower delivers a message once, even if the connection ends under it.
    """

    holder: str | None = None  # start time of the node that has it; None: it must be sent (again)
    sent: float = 0.0  # when it was sent last
    patience: float = 1.0  # how much longer than usual it is waited for before it is sent again; inf: until a restart

    @property
    def waited(self) -> float:
        """The seconds since it was sent."""
        return monotonic() - self.sent

    def is_due(self, since: str, lost_after: float) -> bool:
        """Whether the node that became active at `since` must get it: for the first time, or because it seems lost."""
        return since != self.holder or self.waited >= self.patience * lost_after

    def mark_sent(self, since: str) -> None:
        """Note that this node has it from now on."""
        self.patience = 2 * self.patience if since == self.holder else 1.0
        self.holder, self.sent = since, monotonic()


def by_reason(clients: Mapping[str, str], named: int = 5) -> str:
    """Clients by what keeps them away; of many with one reason, only the first are named.

    >>> by_reason({"home": "offline", "street": "no reply yet", "ward": "offline"})
    'home, ward: offline; street: no reply yet'
    >>> by_reason({f"site{number}": "offline" for number in range(100)})
    'site0, site1, site2, site3, site4 and 95 others: offline'
    """
    names: dict[str, list[str]] = {}
    for name, why in clients.items():
        names.setdefault(why, []).append(name)
    for who in names.values():
        if len(who) > named + 1:
            who[named - 1 :] = [f"{who[named - 1]} and {len(who) - named} others"]
    return "; ".join(f"{', '.join(who)}: {why}" for why, who in names.items())
