"""A long-lived site: a SuperNode beside this process, which carries out its tasks.

Flower's own setup starts Python and torch again for every message. Here they stay loaded, and so does the client. Code
that a run ships is ignored: only the installed code runs.
"""

import logging
import os
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import httpx
import torch
from flwr.app import Error, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode, SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest, SendTaskHeartbeatRequest

from fedhca2.federation.flower.deploy.client_app import as_told, make_app
from fedhca2.federation.flower.deploy.keys import SITE_FILES, require_keys
from fedhca2.federation.flower.deploy.processes import host_and_port, listen, start, stop
from fedhca2.federation.flower.deploy.runtime import runtime_client
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.flower.internals import (
    HeartbeatSender,
    RuntimeHttpClient,
    RuntimeTokenHttpInterceptor,
    RuntimeVersionHttpInterceptor,
    TaskType,
    pull_task_input,
    push_message,
    push_task_output,
)
from fedhca2.words import counted

POLL = 0.5  # seconds between checks for a task; the SuperNode itself checks for messages every 3 seconds
IDLE_POLL = 3.0  # … once none came for a while, since checks are most of what a waiting site costs
A_WHILE = 10.0  # seconds
RESTART = 5.0  # seconds before a lost SuperNode is restarted
log = logging.getLogger("fedhca2.site")
LOOPBACK = "127.0.0.1"
LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")


@dataclass(frozen=True)
class SiteKeys:
    """The files of a site's folder that `fedhca2 flower keys` writes."""

    folder: Path

    @property
    def node(self) -> Path:
        """The private key that identifies the site to the SuperLink."""
        return self.folder / "node.key"

    @property
    def ca(self) -> Path:
        """The CA of the SuperLink's certificate."""
        return self.folder / "ca.crt"

    @property
    def secret(self) -> Path:
        """The secret that this process shows to its SuperNode."""
        return self.folder / "secret"


def work(config: SiteConfig, superlink: str, keys: SiteKeys) -> None:
    """Take part until interrupted; a SuperNode that ends, as it does when it loses the SuperLink, is restarted.

    Raises UserError at once if it could never start.
    """
    host_and_port(superlink, "--superlink")
    require_keys(keys.folder, SITE_FILES)
    app, turn, ports = make_app(Site(config)), threading.Lock(), set[int]()
    only_speak_with(ports)
    if config.threads or config.turns:
        torch.set_num_threads(config.threads or 1)
    threads = counted(torch.get_num_threads(), "thread")
    log.info("%s works in process %d with %s on the CPU", config.client, os.getpid(), threads)
    with tempfile.TemporaryDirectory(prefix="fedhca2-site-") as home:
        while True:
            listening, address = listen(f"{LOOPBACK}:0", "SuperNode")
            ports.add(listening.getsockname()[1])
            with listening:
                node = start(_command(superlink, keys, address), Path(home) / "flwr", listening=listening)
            try:
                _serve(app, turn, node, address, keys.secret)
            finally:
                ended = node.poll()
                stop([node])
                ports.clear()
            why = "did not take a reply" if ended is None else f"ended with code {ended}"
            log.warning("the SuperNode %s; starting it again in %g s", why, RESTART)
            time.sleep(RESTART)


def _command(superlink: str, keys: SiteKeys, address: str) -> list[str]:
    host, port = host_and_port(address, "SuperNode")
    return [
        *("python", "-m", "fedhca2.federation.flower.deploy.supernode"),
        *("--superlink", superlink),
        *("--root-certificates", str(keys.ca)),
        *("--auth-supernode-private-key", str(keys.node)),
        *("--isolation", "process"),
        *("--host", host, "--port", str(port)),
        *("--superexec-auth-secret-file", str(keys.secret)),
    ]


def _serve(app: ClientApp, turn: threading.Lock, node: "subprocess.Popen[bytes]", address: str, secret: Path) -> None:
    """Carry out the SuperNode's tasks for as long as it runs and takes the replies."""
    client = runtime_client(address, None, secret)
    refused, last = threading.Event(), time.monotonic()
    try:
        while node.poll() is None and not refused.is_set():
            try:
                answer = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            except httpx.HTTPError:
                time.sleep(POLL)  # it is starting or stopping
                continue
            if answer.HasField("task") and answer.token:
                # In a thread: a message whose run was stopped half-way never completes, and would block.
                task = (app, address, answer.token, turn, refused)
                threading.Thread(target=_carry_out, args=task, daemon=True).start()
                last = time.monotonic()
            else:
                time.sleep(POLL if time.monotonic() - last < A_WHILE else IDLE_POLL)
    finally:
        client.close()


def _carry_out(app: ClientApp, address: str, token: str, turn: threading.Lock, refused: threading.Event) -> None:
    """Handle one message and its reply; only one is worked on at a time.

    If the SuperNode refuses the reply, as it does once it believes that the task has died, `refused` is set: it might
    wait for that reply, and fetch no other message. The server repeats its orders to one that is started again.
    """
    # Without Flower's retries, which end the process when a task has expired: the server repeats the order.
    client = RuntimeHttpClient.from_server_address(
        address,
        insecure=True,
        root_certificates=None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="flwr-clientapp"),
            RuntimeTokenHttpInterceptor(token),
        ],
    )
    heartbeat = HeartbeatSender(lambda: _beat(client))
    heartbeat.start()
    context, status, details = None, SubStatus.FAILED, ""
    try:
        message, context, _, _ = pull_task_input(client)
        try:
            with turn:
                reply = app(message=message, context=context)
            status = SubStatus.COMPLETED
        except Exception as error:
            log.exception("a message of the server could not be answered")
            details = as_told(error)  # it leaves this machine
            reply = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, details), reply_to=message)
        push_message(client, reply, context)
    except Exception:
        log.exception("a reply could not be delivered")
        refused.set()
    finally:
        push_task_output(client, context, status, details)
        heartbeat.stop()
        client.close()


def _beat(client: RuntimeHttpClient) -> bool:
    """Send heartbeats. Flower's own heartbeat ends the process when a run is over; this one does not."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.TransportError:
        return False
    except httpx.HTTPStatusError as error:
        log.info("a task is over: %s", error)
    return True


class StrangerError(ConnectionError):
    """Something in this process tried to reach another computer, or another program on this one."""


def only_speak_with(ports: set[int]) -> None:
    """Refuse all other connections of this process for as long as it runs; the set of ports may change.

    So no library can download what an experiment names; only files already on this machine are used.
    """

    def refuse_strangers(event: str, arguments: tuple[object, ...]) -> None:
        if event in LOOKUPS:
            host = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
            if host not in (LOOPBACK, LOOPBACK.encode()):
                raise StrangerError(f"a site should resolve no host, found {host!r:.100}")
        elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            address = arguments[1]
            if isinstance(address, tuple) and (address[0] != LOOPBACK or address[1] not in ports):
                raise StrangerError(f"a site should only connect to its SuperNode, found {address!r:.100}")

    sys.addaudithook(refuse_strangers)
