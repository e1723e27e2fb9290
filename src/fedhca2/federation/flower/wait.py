"""Waiting for sites: the time left, and a log line that names them."""

import logging
import math
from collections.abc import Mapping
from time import monotonic

TELL_AFTER = 60.0  # seconds of waiting until it is logged; twice as long every time after
FOREVER = 30 * 86400.0  # seconds; Flower's messages need an end
log = logging.getLogger("fedhca2.server")


class TooFewClientsError(RuntimeError):
    """Fewer clients than required; the run can be resumed when they are back."""


class Wait:
    """One period of waiting, with or without a deadline."""

    def __init__(self, deadline: float | None) -> None:
        began = monotonic()
        self.deadline, self.end = deadline, began + (deadline or math.inf)
        self._pause, self._next = TELL_AFTER, began + TELL_AFTER

    @property
    def is_over(self) -> bool:
        """Whether the deadline has passed."""
        return monotonic() >= self.end

    @property
    def lifetime(self) -> float:
        """Seconds that a message lives: longer than the wait, so that it does not expire before the deadline."""
        return max(self.end - monotonic(), 1.0) + self.deadline if self.deadline else FOREVER

    def tell(self, whom: Mapping[str, str]) -> None:
        """Log from time to time who is waited for, and why."""
        if whom and monotonic() >= self._next:
            self._pause *= 2
            self._next = monotonic() + self._pause
            log.warning("waiting for %s", "; ".join(f"{name}: {why}" for name, why in whom.items()))
