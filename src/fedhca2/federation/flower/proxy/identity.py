"""Who asks: the key that signed a request, and the node that it was registered as."""

import asyncio
from base64 import b64decode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic

from flwr.common.constant import SYSTEM_TIME_TOLERANCE, TIMESTAMP_HEADER, TIMESTAMP_TOLERANCE

from fedhca2.federation.flower.control import Registration
from fedhca2.federation.flower.internals import (
    FLEET_HTTP_PUBLIC_KEY_HEADER,
    FLEET_HTTP_SIGNATURE_HEADER,
    bytes_to_public_key,
    verify_signature,
)

LOOK_EVERY = 1.0  # seconds between two looks at who is registered, however many strangers come


@dataclass(frozen=True)
class Site:
    """Whoever holds a key that is registered."""

    node: int
    name: str
    key: bytes

    def __str__(self) -> str:
        return f"{ascii(self.name)[1:-1][:80]} (node {self.node})"


def key_in(headers: Mapping[str, str]) -> bytes:
    """The key that a request says it is signed with; ValueError if there is none."""
    return b64decode(headers.get(FLEET_HTTP_PUBLIC_KEY_HEADER, ""), validate=True)


def is_signed(headers: Mapping[str, str], key: bytes) -> bool:
    """Whether the holder of this key made the request, lately. Flower signs the time; TLS keeps it from thieves."""
    try:
        time = headers.get(TIMESTAMP_HEADER, "")
        age = (datetime.now(UTC) - datetime.fromisoformat(time)).total_seconds()
        signature = b64decode(headers.get(FLEET_HTTP_SIGNATURE_HEADER, ""), validate=True)
        recent = -SYSTEM_TIME_TOLERANCE < age < TIMESTAMP_TOLERANCE + SYSTEM_TIME_TOLERANCE
        return recent and verify_signature(bytes_to_public_key(key), time.encode("ascii"), signature)
    except (ValueError, TypeError):
        return False


class Register:
    """Who is registered, as the SuperLink knows it; it is asked when somebody comes who was not there before."""

    def __init__(self, look: Callable[[], Iterable[Registration]]) -> None:
        self._look = look
        self._sites: dict[bytes, Site] = {}
        self._looked = -LOOK_EVERY
        self._turn = asyncio.Lock()

    async def find(self, key: bytes) -> Site | None:
        """The site with this key. Who has been evicted is refused by the SuperLink itself."""
        if key not in self._sites:
            async with self._turn:
                if key not in self._sites and monotonic() - self._looked >= LOOK_EVERY:
                    self._looked = monotonic()
                    found = await asyncio.to_thread(self._look)
                    self._sites = {one.key: Site(one.node, one.name, one.key) for one in found if not one.evicted}
        return self._sites.get(key)
