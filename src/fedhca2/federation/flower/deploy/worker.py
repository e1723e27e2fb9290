"""A site at work: it answers a server's messages, next to a SuperNode that fetches them, or as Flower's ClientApp.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any, get_args

import httpx
import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.common.constant import SubStatus
from flwr.proto.runtime_pb2 import AcquireTaskRequest
from flwr.serverapp import Grid, ServerApp

from fedhca2.clients.state_file import RoundIsOverError
from fedhca2.cores import one_per_core
from fedhca2.errors import UserError
from fedhca2.experiment import Experiment, Shard
from fedhca2.federation.flower import records
from fedhca2.federation.flower.deploy.consent import Invitation, RefusalError
from fedhca2.federation.flower.deploy.link import check_keys
from fedhca2.federation.flower.deploy.processes import listen, start, stop
from fedhca2.federation.flower.deploy.secagg_site import LargeValueError, SumRefusedError
from fedhca2.federation.flower.deploy.site import Site
from fedhca2.federation.flower.deploy.site_config import SiteConfig
from fedhca2.federation.flower.deploy.superlink import heartbeats, host_and_port, runtime_client
from fedhca2.federation.flower.fleet import FlowerEngine
from fedhca2.federation.flower.internals import TaskType, pull_task_input, push_message, push_task_output
from fedhca2.federation.flower.wait import NetworkSettings
from fedhca2.federation.gate import UnusableError, plain
from fedhca2.federation.run import run_or_resume
from fedhca2.run_folder.records import ServerRecord, Watcher
from fedhca2.words import counted

# What the server learns of each kind of error. Messages of errors name files, columns and values, and stay in the log.
SENTENCES: Mapping[type[Exception], str] = {
    RefusalError: "this site does not allow it",  # with the settings that refuse
    UserError: "the experiment does not fit the settings or data of this site",
    RoundIsOverError: "the round is over at this site",
    UnusableError: "the message cannot be read",
    SumRefusedError: "this site does not help to add up rows in this way (sums in site.yaml)",
    LargeValueError: "a value of its row is larger than secure_aggregation.clip",
    MemoryError: "this site has too little memory",
    torch.OutOfMemoryError: "this site has too little memory",
    OSError: "this site cannot read or write a file",
    Exception: "an unexpected error at this site",
}
log = logging.getLogger("fedhca2.site")


def work(config: SiteConfig, superlink: str, keys: Path) -> None:
    """Take part until interrupted; a SuperNode that ends, as it does when it loses the SuperLink, is restarted.

    Raises UserError at once if it could never start.

    :param superlink: host:port that sites connect to.
    :param keys: the site's folder with `ca.crt`, `secret` and `node.key`.
    """
    host_and_port(superlink, "--superlink")
    check_keys(keys, ("ca.crt", "secret", "node.key"))
    site, lock, ports = Site(config), threading.Lock(), set[int]()
    restrict_connections(ports)
    if config.threads or config.turns:
        torch.set_num_threads(config.threads or 1)
    threads = counted(torch.get_num_threads(), "thread")
    log.info("%s works in process %d with %s on the CPU", config.client, os.getpid(), threads)
    with tempfile.TemporaryDirectory(prefix="fedhca2-site-") as home:
        while True:
            listening, address = listen("127.0.0.1:0", "SuperNode")
            ports.add(listening.getsockname()[1])
            with listening:
                command = [
                    *("python", "-m", "fedhca2.federation.flower.deploy.processes", "supernode"),
                    *("--superlink", superlink),
                    *("--root-certificates", str(keys / "ca.crt")),
                    *("--auth-supernode-private-key", str(keys / "node.key")),
                    *("--isolation", "process"),
                    *("--host", "127.0.0.1", "--port", address.rpartition(":")[2]),
                    *("--superexec-auth-secret-file", str(keys / "secret")),
                ]
                node = start(command, Path(home) / "flwr", listening=listening)
            try:
                _serve(site, lock, node, address, keys / "secret")
            finally:
                ended = node.poll()
                stop([node])
                ports.clear()
            why = "did not take a reply" if ended is None else f"ended with code {ended}"
            log.warning("the SuperNode %s; starting it again in 5 s", why)
            time.sleep(5)


def _serve(site: Site, lock: threading.Lock, node: "subprocess.Popen[bytes]", address: str, secret: Path) -> None:
    """Carry out the SuperNode's tasks for as long as it runs and takes the replies."""
    refused, last = threading.Event(), time.monotonic()
    with runtime_client(address, None, secret) as client:
        while node.poll() is None and not refused.is_set():
            try:
                acquired = client.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            except httpx.HTTPError:
                time.sleep(0.5)  # it is starting or stopping
                continue
            if acquired.HasField("task") and acquired.token:
                # In a thread: a message whose run was stopped half-way never completes, and would block.
                task = (site, address, secret, acquired.token, lock, refused)
                threading.Thread(target=_handle, args=task, daemon=True).start()
                last = time.monotonic()
            else:  # the SuperNode itself checks for messages every 3 s; checks are most of what a waiting site costs
                time.sleep(0.5 if time.monotonic() - last < 10 else 3)


def _handle(site: Site, address: str, secret: Path, token: str, lock: threading.Lock, refused: threading.Event) -> None:
    """Handle one message and its reply; only one is worked on at a time.

    If the SuperNode refuses the reply, as it does once it believes that the task has died, `refused` is set: it might
    wait for that reply, and fetch no other message. The server repeats its orders to one that is started again.
    """
    context, status = None, SubStatus.FAILED
    # Without Flower's retries, which end the process when a task has expired: the server repeats the order.
    with runtime_client(address, None, secret, token) as client, heartbeats(client):
        try:
            message, context, _, _ = pull_task_input(client)
            with lock:
                reply = answer(lambda: site, message)
            push_message(client, reply, context)
            status = SubStatus.COMPLETED
        except Exception:
            log.exception("a reply could not be delivered")
            refused.set()
        finally:
            push_task_output(client, context, status, "")


class BlockedConnectionError(ConnectionError):
    """Something in this process tried to reach another computer, or another program on this one."""


def restrict_connections(ports: set[int]) -> None:
    """Refuse connections of this process, for as long as it runs, except to these ports of this machine.

    So no library can download what an experiment names; only files already on this machine are used.

    :param ports: the caller may change the set later.
    """
    lookups = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")

    def check(event: str, arguments: tuple[object, ...]) -> None:
        if event in lookups:
            host = arguments[0][0] if isinstance(arguments[0], tuple) else arguments[0]
            if host not in ("127.0.0.1", b"127.0.0.1"):
                raise BlockedConnectionError(f"expected that a site resolves no host, got {host!r:.100}")
        elif event in ("socket.connect", "socket.sendto", "socket.sendmsg"):
            address = arguments[1]
            if isinstance(address, tuple) and (address[0] != "127.0.0.1" or address[1] not in ports):
                raise BlockedConnectionError(f"expected a connection to the SuperNode, got {address!r:.100}")

    sys.addaudithook(check)


def answer(find_site: Callable[[], Site], message: Message) -> Message:
    """Answer any message of the server. A site that cannot do what it is asked says so, and its log says why."""
    try:
        site, header = find_site(), records.header_of(message.content)
        if "refused" in header:
            log.error("the server refuses this site: %s", plain(str(header["refused"])))
            return Message(records.pack({}), reply_to=message)
        with one_per_core(site.config.turns) if site.config.turns else nullcontext():
            return _answer(site, message, header)
    except Exception as error:  # whatever happens, the site continues, and the server learns of it
        expected = isinstance(error, UserError | RoundIsOverError)
        why = "; ".join(map(plain, str(error).splitlines()))
        log.error("cannot take part: %s", why, exc_info=None if expected else error)
        keys = f" ({', '.join(error.keys)} in site.yaml)" if isinstance(error, RefusalError) and error.keys else ""
        told = next(sentence for kind, sentence in SENTENCES.items() if isinstance(error, kind))
        return Message(records.pack({records.CANNOT: f"{told}{keys}; its log says more"}), reply_to=message)


def _answer(site: Site, message: Message, header: Mapping[str, Any]) -> Message:
    if "experiment" not in header:  # a server that knows nobody's key asks first who this is
        return Message(records.pack({"client": site.config.client}), reply_to=message)
    invitation = Invitation.read(header)
    profile = site.describe(invitation)
    if records.STAGE in header:
        content = site.aggregate(invitation, str(header[records.STAGE]), header["round"], header["request"])
        return Message(content, reply_to=message)
    if "order" not in header:
        return Message(records.pack(records.profile_as_data(profile)), reply_to=message)
    wire = header["wire"]
    if wire not in get_args(records.Wire):
        raise UserError("wire", f"expected one of {', '.join(get_args(records.Wire))}, got {wire!r}")
    order = records.decode_order(message.content, profile.layouts)
    log.info("round %d of %s as %s", order.round + 1, plain(str(invitation.experiment["name"])), profile.client)
    reply = site.seen(invitation, order)
    return Message(records.encode_reply(reply, wire, keys=site.keys(invitation, order)), reply_to=message)


def make_app(site: Site | None = None, files: Sequence[Path] = ()) -> ClientApp:
    """A ClientApp that answers as a site.

    :param site: by default, the site whose file the node config names.
    :param files: the sites' files in a simulation, which numbers its nodes.
    """
    app, open_site = ClientApp(), cache(lambda path: Site(SiteConfig.load(path)))

    @app.query()
    @app.train()
    def handle(message: Message, context: Context) -> Message:
        config = context.node_config

        def find() -> Site:
            if site:
                return site
            if files and "partition-id" in config:
                return open_site(files[int(config["partition-id"])])
            if "site" not in config:
                raise UserError("--node-config", f'expected site="FILE.yaml", got {[*config]}')
            return open_site(Path(str(config["site"])))

        return answer(find, message)

    return app


class _LogWatcher(Watcher):
    """Logs a line for every round."""

    def started(self, experiment: Experiment, shards: Mapping[str, Shard]) -> None:
        log.info("%s: %d clients, %d rounds", experiment.method_name, len(shards), experiment.rounds)

    def aggregated(self, round: int, record: ServerRecord, seconds: float) -> None:
        away = "".join(f"; without {client}: {why}" for client, why in record.refused.items())
        log.info("round %d took %.1f s%s", round + 1, seconds, away)


client_app, server_app = make_app(), ServerApp()  # for `flwr run`, whose app names them


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Run the experiment of the run config, or continue it if its folder exists."""
    config = context.run_config
    terms = NetworkSettings(
        deadline=float(config["deadline"]) or None,
        min_clients=int(config["min-clients"]) or None,
        retries=int(config["retries"]),
        wire=config["wire"],
        spool=bool(config["spool"]),
    )
    experiment, out = Experiment.load(str(config["experiment"])), Path(str(config["out"]))
    run_or_resume(experiment, out, watcher=_LogWatcher(), engine=FlowerEngine(grid, terms))
