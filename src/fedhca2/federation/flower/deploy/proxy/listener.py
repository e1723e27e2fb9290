"""Connections: their number, and their time limits."""

import asyncio
import logging
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

STRANGERS, FROM_ONE_ADDRESS = 1024, 256  # connections that have not shown a key
OF_ONE_SITE = 32  # connections that have shown its key: Flower's SuperNode uses seven
HANDSHAKE_TIME = 10.0  # seconds
HEAD_TIME = 30.0  # seconds for the header of a request, from the connection or the last response on
HEAD = 2**14  # bytes of a header
log = logging.getLogger("fedhca2.proxy")


class Connection(H11Protocol):
    """A connection for requests; it is closed if the next one takes too long."""

    def __init__(self, config: Config, state: ServerState, prove: Callable[[int], None]) -> None:
        super().__init__(config, state, {"connection": self})
        self._prove = prove
        self._timer: asyncio.TimerHandle | None = None
        self.is_closed = self.loop.create_future()

    def connection_made(self, transport: Any) -> None:
        """The handshake is done."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Data arrived; the header is complete once its request is being handled."""
        super().data_received(data)
        if self._timer and self.cycle is not None and not self.cycle.response_complete:
            self._timer.cancel()
            self._timer = None

    def on_response_complete(self) -> None:
        """The next request may come."""
        self._wait_for_head()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """It has ended, on either side."""
        super().connection_lost(exc)
        if self._timer:
            self._timer.cancel()
        if not self.is_closed.done():
            self.is_closed.set_result(None)

    def belongs_to(self, node: int) -> None:
        """The peer holds this node's key."""
        self._prove(node)

    def hang_up(self) -> None:
        """Close it without a response."""
        if self.transport:
            self.transport.abort()

    def _wait_for_head(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(HEAD_TIME, self.hang_up)


class _Visit:
    """A connection from the moment it was accepted."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.node: int | None = None  # whose key it has shown
        self.task: asyncio.Task[None] | None = None


class Listener:
    """Accepts connections. If strangers have too many, the oldest of these makes room for the next.

    A connection that has shown a site's key is the site's: sites may share one address, and have room for as many
    connections each as they need. A site that has more loses its own oldest.
    """

    def __init__(self, config: Config) -> None:
        config.load()
        self._config, self._state = config, ServerState()
        self._strangers: dict[_Visit, None] = {}
        self._from = Counter[str]()  # strangers, by address
        self._of: dict[int, dict[_Visit, None]] = {}  # the others, by node

    async def listen(self, listening: socket.socket) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            try:
                connected, (address, *_) = await loop.sock_accept(listening)
            except OSError as error:
                log.warning("a connection could not be accepted: %s", error)
                await asyncio.sleep(0.1)
                continue
            if self._make_room(address):
                visit = _Visit(address)
                self._strangers[visit] = None
                self._from[address] += 1
                visit.task = loop.create_task(self._attend(visit, connected))
            else:
                connected.close()

    def _make_room(self, address: str) -> bool:
        """Whether one more connection from this address can be accepted."""
        if self._from[address] >= FROM_ONE_ADDRESS:
            return self._send_away(visit for visit in self._strangers if visit.address == address)
        return len(self._strangers) < STRANGERS or self._send_away(self._strangers)

    def _send_away(self, visits: Iterable[_Visit]) -> bool:
        """End the oldest of these connections; False if there is none."""
        for visit in visits:
            if visit.task:
                visit.task.cancel()
                self._leave(visit)
                return True
        return False

    def _prove(self, visit: _Visit, node: int) -> None:
        """A stranger has shown the key of a node."""
        if visit not in self._strangers:  # it did so before, or was sent away
            return
        self._leave(visit)
        own = self._of.setdefault(node, {})
        if len(own) >= OF_ONE_SITE:
            self._send_away(own)
        self._of.setdefault(node, {})[visit] = None
        visit.node = node

    def _leave(self, visit: _Visit) -> None:
        if visit in self._strangers:
            del self._strangers[visit]
            self._from[visit.address] -= 1
            if not self._from[visit.address]:
                del self._from[visit.address]
        elif visit.node is not None and visit in self._of.get(visit.node, {}):
            del self._of[visit.node][visit]
            if not self._of[visit.node]:
                del self._of[visit.node]

    async def _attend(self, visit: _Visit, connected: socket.socket) -> None:
        """Do the handshake, and wait until it ends."""
        connection = Connection(self._config, self._state, partial(self._prove, visit))
        try:
            with suppress(OSError, ssl.SSLError):  # strangers hang up, or speak another protocol
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, connected, ssl=self._config.ssl, ssl_handshake_timeout=HANDSHAKE_TIME
                )
                await asyncio.shield(connection.is_closed)
        finally:
            connection.hang_up()
            connected.close()
            self._leave(visit)
