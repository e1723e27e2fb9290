"""Slow connections to the proxy, over real sockets and TLS, with short time limits."""

import asyncio
import socket
import ssl
import threading
import time
from contextlib import ExitStack

import pytest
from uvicorn import Config

from fedhca2.federation.flower.deploy.link import make_keys
from fedhca2.federation.flower.deploy.proxy import Listener
from fedhca2.federation.flower.deploy.proxy_checks import ProxyLimits

pytestmark = pytest.mark.slow
REQUEST = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"


async def app(scope, receive, send):
    """Believes everyone who claims to be a node."""
    if node := dict(scope["headers"]).get(b"node"):
        connection = scope["state"]["connection"]
        connection.listener.admit(connection, int(node))
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


@pytest.fixture
def address(tmp_path):
    limits = ProxyLimits(8, strangers_from_one_address=6, connections_of_a_site=3, handshake_s=0.5, head_s=0.5)
    make_keys(tmp_path / "keys", [])
    files = {"ssl_certfile": tmp_path / "keys" / "superlink.crt", "ssl_keyfile": tmp_path / "keys" / "superlink.key"}
    config = Config(app, http="h11", ws="none", lifespan="off", log_config=None, access_log=False, **files)
    loop, listening = asyncio.new_event_loop(), socket.create_server(("127.0.0.1", 0))
    listening.setblocking(False)

    async def serve():
        await Listener(config, limits).listen(listening)

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    task = asyncio.run_coroutine_threadsafe(serve(), loop)
    yield listening.getsockname(), ssl.create_default_context(cafile=str(tmp_path / "keys" / "ca.crt"))
    task.cancel()
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    listening.close()


def plain(address):
    return socket.create_connection(address[0], 5)


def secure(address):
    return address[1].wrap_socket(plain(address), server_hostname="127.0.0.1")


def ask(connection, head=REQUEST):
    """The first line of the answer; empty if there is none."""
    try:
        connection.sendall(head)
        return connection.recv(4096).split(b"\r\n")[0]
    except OSError:
        return b""


def ended(connection, seconds):
    """Whether the other side closes a connection within this many seconds."""
    connection.settimeout(seconds)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def test_a_connection_without_a_handshake_is_closed(address):
    with plain(address) as silent:
        assert ended(silent, 3)


def test_a_request_head_that_arrives_slowly_is_cut_off(address):
    with secure(address) as slow:
        began = time.monotonic()
        while time.monotonic() - began < 3 and not ended(slow, 0.1):
            try:
                slow.sendall(b"P")
            except OSError:
                break
        assert time.monotonic() - began < 2


def test_a_connection_with_timely_requests_stays_open(address):
    with secure(address) as quick:
        for _ in range(4):
            assert ask(quick) == b"HTTP/1.1 200 OK"
            time.sleep(0.25)


def test_a_request_head_that_is_too_long_is_refused(address):
    with secure(address) as long:
        long.sendall(b"POST / HTTP/1.1\r\nx: ")
        long.settimeout(0.03)
        answer = None
        while answer is None:
            try:
                answer = long.recv(4096)
            except TimeoutError:  # in pieces: what is sent after the answer would reset the connection
                long.sendall(b"x" * 20_000)
        assert answer.startswith(b"HTTP/1.1 400 Bad Request")


def of(node):
    """A request of a node."""
    return REQUEST[:-2] + b"node: %d\r\n\r\n" % node


OK = b"HTTP/1.1 200 OK"


def test_the_oldest_connection_without_a_key_is_closed_for_a_new_one(address):
    with ExitStack() as stack:
        site = stack.enter_context(secure(address))
        ask(site, of(1))
        for _ in range(12):
            stack.enter_context(plain(address))
        assert ask(stack.enter_context(secure(address))) == OK
        assert ask(site, of(1)) == OK


def test_more_sites_share_an_address_than_strangers_may(address):
    with ExitStack() as stack:
        sites = {node: stack.enter_context(secure(address)) for node in range(1, 6)}
        for node, site in sites.items():
            ask(site, of(node))
        sites |= {node: stack.enter_context(secure(address)) for node in range(6, 11)}
        assert [ask(site, of(node)) for node, site in sites.items()] == [OK] * 10


def test_a_site_with_too_many_connections_loses_its_oldest(address):
    with ExitStack() as stack:
        other = stack.enter_context(secure(address))
        ask(other, of(2))
        own = [stack.enter_context(secure(address)) for _ in range(4)]
        for connection in own:
            ask(connection, of(1))
        assert ended(own[0], 0.3)
        assert [ask(connection, of(1)) for connection in own[1:]] == [OK] * 3
        assert ask(other, of(2)) == OK


def test_a_connection_that_has_ended_takes_no_room(address):
    with secure(address) as first:
        ask(first, of(1))
        for _ in range(5):
            with secure(address) as brief:
                ask(brief, of(1))
        assert ask(first, of(1)) == OK
