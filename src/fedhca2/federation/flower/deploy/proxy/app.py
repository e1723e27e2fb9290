"""Handling requests: identify the site, check the request, and forward it to the SuperLink."""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from time import monotonic

import httpx
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    PullMessagesRequest,
    PullMessagesResponse,
    PushMessagesRequest,
    PushMessagesResponse,
)
from flwr.proto.message_pb2 import ObjectTree, PushObjectRequest
from google.protobuf.message import DecodeError, Message
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse
from starlette.types import Receive, Scope, Send

from fedhca2.federation.flower.deploy.proxy.requests import (
    ROUTES,
    Allowance,
    Objects,
    Register,
    Route,
    Site,
    claimed_node,
    fault_of,
    is_signed,
    key_in,
)

AT_ONCE = 16  # concurrent requests per site; Flower's SuperNode uses six
BODY_TIME = 120.0  # seconds for a request to arrive: a chunk at 0.4 Mbit/s
WHOLE_TIME = 300.0  # seconds until it has its answer
Headers = Mapping[str, str]
AGAIN = 10.0  # seconds until a record of the same kind is logged again, with its count
KINDS = 1024  # distinct records that are counted separately
NUMBER = re.compile(r"\d+")
log = logging.getLogger("fedhca2.proxy")


class Proxy:
    """Forwards the requests that registered sites may make to a SuperLink."""

    def __init__(self, superlink: httpx.AsyncClient, register: Register, quota: int) -> None:
        self._superlink, self._register, self._quota = superlink, register, quota
        self._objects = Objects()
        self._allowances: dict[int, Allowance] = {}
        self._busy = Counter[int]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer any request."""
        request = Request(scope, receive)
        who = f"a stranger at {request.client.host if request.client else 'an unknown address'}"
        try:
            async with asyncio.timeout(WHOLE_TIME):
                route, headers = _route(request), _headers(request)
                site = await self._identify(route, headers)
                who = str(site)
                scope["state"]["connection"].belongs_to(site.node)
                await self._serve(site, route, headers, request, send)
        except Refusal as refusal:
            asked = f"{request.method} {ascii(request.url.path)[1:-1][:80]}"
            log.warning("refused %s, %s: %s", who, asked, refusal.why, extra={"kind": f"{who}: {refusal.why}"})
            answer = PlainTextResponse(refusal.why, refusal.status, {"connection": "close"})
            await answer(scope, receive, send)
        except (ClientDisconnect, TimeoutError, httpx.HTTPError):
            scope["state"]["connection"].hang_up()

    async def _identify(self, route: Route, headers: Headers) -> Site:
        """Identify the sender; only the header of the request has been read."""
        try:
            key = key_in(headers)
            site = await self._register.find(key)
        except ValueError:
            raise Refusal(401, "a request should be signed with a key, found none") from None
        except httpx.HTTPError:
            raise Refusal(503, "the SuperLink should answer, found nothing") from None
        if site is None:
            status = 412 if route.request is ActivateNodeRequest else 401  # the SuperLink's own codes
            raise Refusal(status, "a key should be registered, found another")
        if not is_signed(headers, key):
            raise Refusal(
                401,
                "a request should be signed by the holder of its key within the last minutes, found another signature",
            )
        return site

    async def _serve(self, site: Site, route: Route, headers: Headers, request: Request, send: Send) -> None:
        """Read a site's request, forward it, and return the response."""
        if self._busy[site.node] >= AT_ONCE:
            raise Refusal(503, f"a site should have at most {AT_ONCE} requests at a time, found more")
        self._busy[site.node] += 1
        try:
            body = await _body(request, route.limit)
            message = self._parse(site, route, body)
            allowance = self._allowances.setdefault(site.node, Allowance(self._quota))
            announces = isinstance(message, PushMessagesRequest)
            size = len(body) if announces or isinstance(message, PushObjectRequest) else 0
            if why := allowance.take(size, announces):
                raise Refusal(413, why)
            if isinstance(message, PushMessagesRequest):
                response = await self._announce(site, message, partial(self._ask, request.url.path, body, headers))
            else:
                response = await self._ask(request.url.path, body, headers)
            if not response.is_success:
                allowance.give_back(size, announces)
            elif isinstance(message, PullMessagesRequest) and (trees := await _trees_in(response)):
                allowance.renew()
                for tree in trees:
                    self._objects.note_order(site.node, tree)
            await _pass_back(response, send)
        finally:
            self._busy[site.node] -= 1

    def _parse(self, site: Site, route: Route, body: bytes) -> Message:
        """Parse the request, if the site may make it."""
        message = route.request()
        try:
            message.ParseFromString(body)
        except DecodeError:
            raise Refusal(400, f"should be a {route.request.__name__}, found something else") from None
        if why := fault_of(message, site.node, site.key):
            # A SuperNode that still has its number from an earlier SuperLink ends on 401, and its site starts it anew.
            raise Refusal(401 if claimed_node(message) not in (0, site.node) else 403, why)
        return message

    async def _announce(
        self, site: Site, message: PushMessagesRequest, ask: Callable[[], Awaitable[httpx.Response]]
    ) -> httpx.Response:
        """Announce an answer, if its objects are new; they are the site's once the SuperLink has accepted them."""
        tree = message.message_object_trees[0]
        try:
            new = self._objects.claim(site.node, tree)
        except ValueError as error:
            raise Refusal(403, str(error)) from None
        response = await ask()
        if new and not (
            response.is_success and PushMessagesResponse.FromString(await response.aread()).objects_to_push
        ):
            self._objects.release(site.node, tree)
        return response

    async def _ask(self, path: str, body: bytes, headers: Headers) -> httpx.Response:
        """The SuperLink's response, of which only the header has been read."""
        own = {name: value for name, value in headers.items() if _is_passed(name)}
        try:
            request = self._superlink.build_request("POST", path, content=body, headers=own)
            return await self._superlink.send(request, stream=True)
        except httpx.HTTPError as error:
            raise Refusal(503, f"the SuperLink should answer, found {type(error).__name__}") from None


def _route(request: Request) -> Route:
    route = ROUTES.get(request.url.path)
    if route is None:
        raise Refusal(404, "path should be one that is open to sites, found another")
    if request.method != "POST":
        raise Refusal(403, "method should be POST, found another")
    return route


def _headers(request: Request) -> Headers:
    """The headers, each only once: otherwise different readers could see different values."""
    headers = request.headers.items()
    if len(headers) != len(dict(headers)):
        raise Refusal(400, "a header should appear once, found one twice")
    if not all(value.isascii() for _, value in headers):
        raise Refusal(400, "a header: expected ASCII, got other characters")
    return dict(headers)


def _is_passed(name: str) -> bool:
    return name in ("content-type", "accept") or name.startswith("flwr-")


async def _body(request: Request, limit: int) -> bytes:
    """The whole body, within its bounds; its length is announced."""
    length = request.headers.get("content-length", "")
    if not length.isdecimal():
        raise Refusal(411, "a request should announce its length, found none")
    if int(length) > limit:
        raise Refusal(413, f"a request should have at most {limit} B, found {length[:20]}")
    try:
        async with asyncio.timeout(BODY_TIME):
            return await request.body()
    except TimeoutError:
        raise Refusal(408, f"a request should arrive within {BODY_TIME:g} s, found it late") from None


async def _trees_in(response: httpx.Response) -> Sequence[ObjectTree]:
    """The trees of the messages that the SuperLink sends."""
    trees: Sequence[ObjectTree] = PullMessagesResponse.FromString(await response.aread()).message_object_trees
    return trees


async def _pass_back(response: httpx.Response, send: Send) -> None:
    """Stream the SuperLink's response to a site."""
    try:
        kept = [(name.encode(), value.encode()) for name, value in response.headers.items() if _is_kept(name)]
        await send({"type": "http.response.start", "status": response.status_code, "headers": kept})
        async for piece in response.aiter_bytes():
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})
    finally:
        await response.aclose()
        response.stream = httpx.ByteStream(b"")  # breaks a reference cycle that would keep the request's body


def _is_kept(name: str) -> bool:
    return name in ("content-type", "content-length") or name.startswith("flwr-")


class Refusal(Exception):  # noqa: N818 - it is an answer
    """The answer to a request that is not forwarded."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status, self.why = status, why


class Seldom(logging.Filter):
    """Lets one record of a kind pass in ten seconds, with a count of the others, so that no one can fill the disk."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}  # when it was last logged, and the count since

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether to log a record. Its kind is its own, or its text without arguments."""
        kind = NUMBER.sub("#", getattr(record, "kind", str(record.msg)))
        logged, count = self._seen.get(kind, (-AGAIN, 0))
        if monotonic() - logged < AGAIN:
            self._seen[kind] = logged, count + 1
            return False
        if count:
            record.msg, record.args = f"{record.getMessage()} ({count} more times before)", ()
        if len(self._seen) >= KINDS:
            self._seen.clear()
        self._seen[kind] = monotonic(), 0
        return True
