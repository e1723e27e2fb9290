"""The proxy on the public address in front of a SuperLink: sites reach the fleet interface and nothing else.

The SuperLink trusts holders of a key more than it should. Every request is read whole, within bounds, and checked here
before the SuperLink sees it; responses are streamed.

`python -m fedhca2.federation.flower.deploy.proxy LISTEN SUPERLINK KEYS QUOTA` runs it until stopped.
"""

import asyncio
import logging
import resource
import signal
import socket
import ssl
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import httpx
import uvloop
from flwr.proto import fleet_pb2, message_pb2
from flwr.proto.node_pb2 import NodeInfo
from google.protobuf.message import DecodeError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.server import ServerState

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy import proxy_checks as checks
from fedhca2.federation.flower.deploy.processes import inherited_socket
from fedhca2.federation.flower.deploy.proxy_checks import Headers, ProxyLimits, Refusal, Route
from fedhca2.federation.flower.deploy.superlink import TOKEN, SuperLink, operator_token

ListNodes = Callable[[], Iterable[NodeInfo]]
log = logging.getLogger("fedhca2.proxy")


class Proxy:
    """Forwards the requests that registered sites may make to a SuperLink."""

    def __init__(self, superlink: httpx.AsyncClient, list_nodes: ListNodes, quota: int, limits: ProxyLimits) -> None:
        """Prepare for requests.

        :param list_nodes: asks the SuperLink for its keys.
        :param quota: bytes that a site may send for each message it receives.
        """
        self._superlink, self._list_nodes, self._quota, self._limits = superlink, list_nodes, quota, limits
        self._sites: dict[bytes, NodeInfo] = {}  # by key
        self._lock, self._next_list = asyncio.Lock(), 0.0
        self._objects = checks.KnownObjects()
        self._quotas: dict[int, checks.Quota] = {}
        self._busy = Counter[int]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer any request."""
        request = Request(scope, receive)
        who = f"a stranger at {request.client.host if request.client else 'an unknown address'}"
        try:
            async with asyncio.timeout(self._limits.answer_s):
                route, headers, key = checks.read_head(request)
                site = await self._identify(route, headers, key)
                who = f"{ascii(site.name)[1:-1][:80]} (node {site.node_id})"
                connection = scope["state"]["connection"]
                connection.listener.admit(connection, site.node_id)
                await self._serve(site, route, headers, request, send)
        except Refusal as refusal:
            status, why = refusal.args
            summary = f"{request.method} {ascii(request.url.path)[1:-1][:80]}"
            log.warning("refused %s, %s: %s", who, summary, why, extra={"kind": f"{who}: {why}"})
            answer = PlainTextResponse(why, status, {"connection": "close"})
            await answer(scope, receive, send)
        except (ClientDisconnect, TimeoutError, httpx.HTTPError):
            scope["state"]["connection"].hang_up()

    async def _identify(self, route: Route, headers: Headers, key: bytes) -> NodeInfo:
        """Identify the sender; only the header of the request has been read.

        An unknown key is looked up at the SuperLink, at most once in a second, however many strangers come. The
        SuperLink itself refuses evicted sites.
        """
        if key not in self._sites:
            async with self._lock:
                if key not in self._sites and monotonic() >= self._next_list:
                    self._next_list = monotonic() + 1
                    try:
                        nodes = await asyncio.to_thread(self._list_nodes)
                    except UserError:
                        raise Refusal(503, "the SuperLink: expected an answer, got none") from None
                    self._sites = {one.public_key: one for one in nodes if not one.unregistered_at}
        site = self._sites.get(key)
        if site is None:
            status = 412 if route.request is fleet_pb2.ActivateNodeRequest else 401  # the SuperLink's own codes
            raise Refusal(status, "a key: expected a registered one, got another")
        if not checks.is_signed(headers, key):
            raise Refusal(401, "a request: expected a signature of the last minutes with its key, got another")
        return site

    async def _serve(self, site: NodeInfo, route: Route, headers: Headers, request: Request, send: Send) -> None:
        """Read a site's request, forward it, and return the response."""
        if self._busy[site.node_id] >= (limit := self._limits.requests_of_a_site):
            raise Refusal(503, f"a site: expected at most {limit} requests at a time, got more")
        self._busy[site.node_id] += 1
        try:
            body = await self._body(request, route.limit)
            try:
                message = route.request.FromString(body)
            except DecodeError:
                raise Refusal(400, f"expected a {route.request.__name__}, got something else") from None
            checks.check_request(message, site)
            quota = self._quotas.setdefault(site.node_id, checks.Quota(self._quota))
            announces = isinstance(message, fleet_pb2.PushMessagesRequest)
            size = len(body) if announces or isinstance(message, message_pb2.PushObjectRequest) else 0
            quota.take(size, announces)
            new = announces and self._objects.claim(site.node_id, message.message_object_trees[0])
            response = await self._ask(request.url.path, body, headers)
            content = await response.aread() if new else b""
            if new and not (response.is_success and fleet_pb2.PushMessagesResponse.FromString(content).objects_to_push):
                self._objects.release(site.node_id, message.message_object_trees[0])
            if not response.is_success:
                quota.give_back(size, announces)
            elif isinstance(message, fleet_pb2.PullMessagesRequest):
                trees = fleet_pb2.PullMessagesResponse.FromString(await response.aread()).message_object_trees
                if trees:
                    quota.renew()
                for tree in trees:
                    self._objects.note(site.node_id, tree, is_answer=False)
            await _pass_back(response, send)
        finally:
            self._busy[site.node_id] -= 1

    async def _body(self, request: Request, limit: int) -> bytes:
        """The whole body, within its bounds; its length is announced."""
        length = request.headers.get("content-length", "")
        if not length.isdecimal():
            raise Refusal(411, "a request: expected its length, got none")
        if int(length) > limit:
            raise Refusal(413, f"a request: expected at most {limit} B, got {length[:20]}")
        try:
            async with asyncio.timeout(self._limits.body_s):
                return await request.body()
        except TimeoutError:
            raise Refusal(408, f"a request: expected it within {self._limits.body_s:g} s, got it late") from None

    async def _ask(self, path: str, body: bytes, headers: Headers) -> httpx.Response:
        """The SuperLink's response, of which only the header has been read."""
        try:
            request = self._superlink.build_request("POST", path, content=body, headers=checks.forwarded(headers))
            return await self._superlink.send(request, stream=True)
        except httpx.HTTPError as error:
            raise Refusal(503, f"the SuperLink: expected an answer, got {type(error).__name__}") from None


async def _pass_back(response: httpx.Response, send: Send) -> None:
    """Stream the SuperLink's response to a site."""
    try:
        headers = [(name.encode(), value.encode()) for name, value in checks.forwarded(response.headers).items()]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        async for piece in response.aiter_bytes():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await response.aclose()
        response.stream = httpx.ByteStream(b"")  # breaks a reference cycle that would keep the request's body


class Connection(H11Protocol):
    """A connection for requests, from the moment it was accepted; it is closed if the next one takes too long."""

    def __init__(self, listener: "Listener", address: str) -> None:
        super().__init__(listener.config, listener.state, {"connection": self})
        self.listener, self.address = listener, address
        self.room = listener.strangers  # the connections that it counts among
        self.task: asyncio.Task[None]  # which attends to it
        self.is_closed = self.loop.create_future()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """The handshake is done."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Data arrived; the header is complete once its request is being handled."""
        super().data_received(data)
        if self._timer and self.cycle is not None and not self.cycle.response_complete:
            self._timer.cancel()

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

    def hang_up(self) -> None:
        """Close it without a response."""
        if self.transport:
            self.transport.abort()

    def _wait_for_head(self) -> None:
        if self._timer:
            self._timer.cancel()
        self._timer = self.loop.call_later(self.listener.limits.head_s, self.hang_up)


class Listener:
    """Accepts connections. If strangers have too many, the oldest of these makes room for the next.

    A connection that has shown a site's key is the site's: sites may share one address, and have room for as many
    connections each as they need. A site that has more loses its own oldest.
    """

    def __init__(self, config: Config, limits: ProxyLimits) -> None:
        config.load()
        self.config, self.limits, self.state = config, limits, ServerState()
        self.strangers: dict[Connection, None] = {}  # the oldest first
        self._of_site = defaultdict[int, dict[Connection, None]](dict)  # the others, by node

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
            self._make_room(address)
            connection = Connection(self, address)
            connection.room[connection] = None
            connection.task = loop.create_task(self._attend(connection, connected))

    def admit(self, connection: Connection, node: int) -> None:
        """A connection without a key has shown that of a node."""
        if connection not in self.strangers:  # it did so before, or was sent away
            return
        own = self._of_site[node]
        if len(own) >= self.limits.connections_of_a_site:
            self._send_away(next(iter(own)))
        del self.strangers[connection]
        own[connection], connection.room = None, own

    def _make_room(self, address: str) -> None:
        """Make room for one more connection from this address."""
        neighbours = [one for one in self.strangers if one.address == address]
        if len(neighbours) >= self.limits.strangers_from_one_address:
            self._send_away(neighbours[0])
        elif len(self.strangers) >= self.limits.strangers:
            self._send_away(next(iter(self.strangers)))

    def _send_away(self, connection: Connection) -> None:
        connection.task.cancel()
        connection.room.pop(connection, None)

    async def _attend(self, connection: Connection, connected: socket.socket) -> None:
        """Do the handshake, and wait until the connection ends."""
        try:
            with suppress(OSError, ssl.SSLError):  # strangers hang up, or speak another protocol
                await asyncio.get_running_loop().connect_accepted_socket(
                    lambda: connection, connected, ssl=self.config.ssl, ssl_handshake_timeout=self.limits.handshake_s
                )
                await asyncio.shield(connection.is_closed)
        finally:
            connection.hang_up()
            connected.close()
            connection.room.pop(connection, None)


async def serve(listen: str, superlink: str, keys: Path, quota: int) -> None:
    """Run the proxy of a SuperLink until a signal ends this process; `quota` is bytes for each message to a site."""
    link, limits = SuperLink(superlink, keys), ProxyLimits()
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, done.set)
    async with httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=ssl.create_default_context(cafile=str(keys / "ca.crt")),
        headers={TOKEN: operator_token((keys / "secret").read_bytes()), "accept-encoding": "identity"},
        # The SuperLink handles 40 requests at a time.
        limits=httpx.Limits(max_connections=64, max_keepalive_connections=64, keepalive_expiry=3),
        timeout=limits.answer_s,
    ) as client:
        config = Config(
            Proxy(client, link.registrations, quota, limits),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=int(limits.head_s),
            h11_max_incomplete_event_size=limits.head_bytes,
            ssl_certfile=keys / "superlink.crt",
            ssl_keyfile=keys / "superlink.key",
        )
        with inherited_socket() as listening:
            listening.setblocking(False)
            log.info("sites can connect to %s", listen)
            listener = loop.create_task(Listener(config, limits).listen(listening))
            await done.wait()
            listener.cancel()


def main(listen: str, superlink: str, keys: str, quota: str) -> None:
    """Serve with the words of the command line; see `serve`."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger().handlers[0].addFilter(checks.RateLimitFilter())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(listen, superlink, Path(keys), int(quota)))


if __name__ == "__main__":
    main(*sys.argv[1:])
