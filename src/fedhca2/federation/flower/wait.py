"""Waiting for sites: the time left, messages that seem to be lost, and a log line that names who is waited for."""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from time import monotonic

NAMED = 5  # clients with one reason that a message names
TELL_AFTER = 60.0  # seconds of waiting until it is logged; twice as long every time after
# A message without an answer is taken for lost this many seconds, and three times as long as the slowest other took,
# after it was given.
LOST_AFTER, TIMES_AS_LONG = 60.0, 3
log = logging.getLogger("fedhca2.server")


class TooFewClientsError(RuntimeError):
    """Fewer clients than required; the run can be resumed when they are back."""


class Wait:
    """One period of waiting, with or without a deadline."""

    def __init__(self, deadline: float | None) -> None:
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
class Sending:
    """A message for a node, which is given again, at growing intervals, for as long as there is no answer.

    Flower delivers a message once, even if the connection ends under it.
    """

    given: str | None = None  # start time of the node that has it; None: it must be sent (again)
    sent: float = 0.0  # when it was given
    patience: float = 1.0  # how much longer than usual it is waited for before it is given again

    @property
    def waited(self) -> float:
        """The seconds since it was given."""
        return monotonic() - self.sent

    def is_due(self, since: str, lost_after: float) -> bool:
        """Whether the node that became active at `since` must get it: for the first time, or because it seems lost."""
        return since != self.given or self.waited >= self.patience * lost_after

    def give(self, since: str) -> None:
        """Note that this node has it from now on."""
        self.patience = 2 * self.patience if since == self.given else 1.0
        self.given, self.sent = since, monotonic()

    def close(self) -> None:
        """Never give it to this node again, unless it restarts."""
        self.patience = math.inf


def by_reason(clients: Mapping[str, str]) -> str:
    """Clients by what keeps them away; of many, only the first are named.

    >>> by_reason({"home": "offline", "street": "no reply yet", "ward": "offline"})
    'home, ward: offline; street: no reply yet'
    >>> by_reason({f"site{number}": "offline" for number in range(100)})
    'site0, site1, site2, site3, site4 and 95 others: offline'
    """
    names: dict[str, list[str]] = {}
    for name, why in clients.items():
        names.setdefault(why, []).append(name)
    return "; ".join(f"{_first(who)}: {why}" for why, who in names.items())


def _first(names: list[str]) -> str:
    if len(names) <= NAMED + 1:
        return ", ".join(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} others"
