"""`python -m fedhca2.federation.flower.deploy.proxy`: run the proxy of a SuperLink until stopped."""

import argparse
import asyncio
import logging
import resource
import signal
import ssl
from pathlib import Path

import httpx
import uvloop
from uvicorn import Config

from fedhca2.federation.flower.deploy.control import (
    TOKEN,
    Registration,
    control_client,
    list_registrations,
    operator_token,
)
from fedhca2.federation.flower.deploy.processes import given_socket
from fedhca2.federation.flower.deploy.proxy.app import WHOLE_TIME, Proxy, Seldom
from fedhca2.federation.flower.deploy.proxy.listener import HEAD, HEAD_TIME, Listener
from fedhca2.federation.flower.deploy.proxy.requests import Register

UPSTREAM = 64  # connections to the SuperLink, which handles 40 requests at a time


def main() -> None:
    """Read the command line, and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--listen", required=True, metavar="HOST:PORT", help="the public address, of the socket that is its input"
    )
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT", help="the SuperLink's address")
    parser.add_argument("--keys", required=True, type=Path, help="the folder that 'fedhca2 flower keys' wrote")
    parser.add_argument("--quota", required=True, type=int, help="bytes that a site may send for one message")
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger().handlers[0].addFilter(Seldom())
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(serve(options.listen, options.superlink, options.keys, options.quota))


async def serve(listen: str, superlink: str, keys: Path, quota: int) -> None:
    """Run the proxy of a SuperLink on an address."""
    ca, secret = keys / "ca.crt", keys / "secret"

    def look() -> list[Registration]:
        with control_client(superlink, ca, secret) as control:
            return list_registrations(control)

    loop, done = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, done.set)
    async with httpx.AsyncClient(
        base_url=f"https://{superlink}",
        verify=ssl.create_default_context(cafile=str(ca)),
        headers={TOKEN: operator_token(secret.read_bytes()), "accept-encoding": "identity"},
        limits=httpx.Limits(max_connections=UPSTREAM, max_keepalive_connections=UPSTREAM, keepalive_expiry=3),
        timeout=WHOLE_TIME,
    ) as client:
        config = Config(
            Proxy(client, Register(look), quota),
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_keep_alive=int(HEAD_TIME),
            h11_max_incomplete_event_size=HEAD,
            ssl_certfile=keys / "superlink.crt",
            ssl_keyfile=keys / "superlink.key",
        )
        with given_socket() as listening:
            listening.setblocking(False)
            logging.getLogger("fedhca2.proxy").info("sites can connect to %s", listen)
            listener = loop.create_task(Listener(config).listen(listening))
            await done.wait()
            listener.cancel()


if __name__ == "__main__":
    main()
