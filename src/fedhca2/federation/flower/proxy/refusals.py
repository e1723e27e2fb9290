"""Requests that are refused, in the log: who asked, for what, and why not."""

import logging
import re
from time import monotonic

AGAIN = 10.0  # seconds until the same is said again, with how often it happened
KINDS = 1024  # of refusals that are told apart
NUMBER = re.compile(r"\d+")
log = logging.getLogger("fedhca2.proxy")


class Refusal(Exception):  # noqa: N818 - it is an answer
    """What a request is answered that is not passed on."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Refusals:
    """Writes a line for each, and one for many of the same: nobody fills a disk with them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], tuple[float, int]] = {}  # when it was last told of, and how often since

    def tell(self, who: str, asked: str, why: str) -> None:
        """Somebody asked for a path and was refused."""
        kind = who, NUMBER.sub("#", why)
        told, count = self._seen.get(kind, (-AGAIN, 0))
        if monotonic() - told < AGAIN:
            self._seen[kind] = told, count + 1
            return
        log.warning("refused %s, %s: %s%s", who, asked, why, f" ({count} times more before)" if count else "")
        if len(self._seen) >= KINDS:
            self._seen.clear()
        self._seen[kind] = monotonic(), 0
