"""A SuperLink for its operator: the token that opens it, the registered keys, and runs with this process as ServerApp.

This module does not need torch, and imports Flower's large modules on first use: the proxy, which uses it, stays small.
"""

import hmac
import logging
import tempfile
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from secrets import token_hex

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key, ssh_key_fingerprint
from flwr.common.constant import SubStatus
from flwr.proto import control_pb2, runtime_pb2
from flwr.proto.node_pb2 import NodeInfo

from fedhca2.errors import UserError
from fedhca2.federation.flower import internals
from fedhca2.federation.flower.internals import ControlHttpClient, Fab, RuntimeHttpClient
from fedhca2.version import __version__
from fedhca2.whole_files import ORDINARY, write_whole

TOKEN = "fedhca2-operator"  # the header of requests from the coordinator or its proxy
log = logging.getLogger("fedhca2.server")


class RunEndedError(RuntimeError):
    """The SuperLink ended an active run: it was stopped, its clock jumped, or the computer slept."""


class LinkLostError(UserError):
    """The SuperLink does not answer, or the federation has lost another process for good: it is no site's fault."""


def host_and_port(address: str, option: str) -> tuple[str, int]:
    """Split HOST:PORT, with an IPv6 address in brackets; raises UserError, which names the option, if it is not."""
    host, _, port = address.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()) or int(port) > 65535:
        raise UserError(option, f"expected HOST:PORT, got {address!r}")
    return host, int(port)


def operator_token(secret: bytes) -> str:
    """The token that the coordinator's processes show to their SuperLink; it cannot be computed without the secret."""
    return hmac.digest(secret, b"fedhca2 operator", "sha256").hex()


def write_app(folder: Path, mark: str = "") -> None:
    """Write the Flower app: the names of two objects in this package. A run needs an app; sites use their own code.

    :param mark: apps with different marks have different hashes.
    """
    folder.mkdir(parents=True, exist_ok=True)
    app = (files("fedhca2.federation.flower.deploy") / "app.toml").read_text("utf-8").replace("VERSION", __version__)
    write_whole(folder / "pyproject.toml", f"{app}{mark and '# '}{mark}\n".encode(), ORDINARY)


def fingerprint(key: bytes) -> str:
    """The fingerprint of a public key in PEM, as `ssh-keygen -lf node.pub` prints it."""
    digest = ssh_key_fingerprint(internals.bytes_to_public_key(key), hashes.SHA256())
    return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


@dataclass(frozen=True)
class SuperLink:
    """The address of a SuperLink, and the coordinator's folder of keys to talk to it."""

    address: str  # host:port
    keys: Path
    check: Callable[[], None] = field(default=lambda: None, repr=False)  # raises LinkLostError if it is gone for good

    def __post_init__(self) -> None:
        host_and_port(self.address, "--superlink")

    def register(self, name: str, public_key: Path) -> int:
        """Register a site's key under this name; returns its node's number."""
        try:
            key = load_ssh_public_key(public_key.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UserError(public_key, f"expected a public key as ssh-keygen writes it, got {error}") from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise UserError(public_key, f"expected an elliptic-curve key, got {type(key).__name__}")
        with self._control() as control:
            request = control_pb2.RegisterNodeRequest(public_key=internals.public_key_to_bytes(key), name=name)
            return int(control.RegisterNode(request).node_id)

    def evict(self, name: str) -> list[int]:
        """Evict all nodes with this name; returns their numbers."""

        def admitted() -> list[int]:
            return [one.node_id for one in self.registrations() if one.name == name and not one.unregistered_at]

        nodes = admitted()
        for node in nodes:
            # Flower also evicts a node that never connected, and then fails to say so.
            with suppress(UserError), self._control() as control:
                control.UnregisterNode(control_pb2.UnregisterNodeRequest(node_id=node))
        if not nodes or admitted():
            fault = "it is still registered" if nodes else "no site of this name is registered"
            raise UserError(name, f"cannot be evicted: {fault}")
        return nodes

    def registrations(self) -> list[NodeInfo]:
        """Every key that this SuperLink ever learned of, the earliest first."""
        with self._control() as control:
            nodes = control.ListNodes(control_pb2.ListNodesRequest()).nodes_info
        return sorted(nodes, key=lambda one: (one.registered_at, one.node_id))

    def stop(self, run: int) -> None:
        """End a run whose ServerApp is gone, so that no site waits for its next message."""
        with suppress(UserError), self._control() as control:  # it may have ended by itself
            control.StopRun(control_pb2.StopRunRequest(run_id=run))

    @contextmanager
    def run(self, deadline: float | None = None) -> Iterator["internals.HttpGrid"]:
        """Start a new run of this SuperLink; the holder of the grid is its ServerApp.

        Requests raise LinkLostError once the SuperLink has not answered for a minute, or for the seconds of a round.
        """
        with tempfile.TemporaryDirectory() as folder:
            write_app(Path(folder), token_hex(16))  # no other run has the same, so its hash identifies its task
            content = internals.build_fab_from_disk(Path(folder))
        app = Fab(sha256(content).hexdigest(), content, {})
        with self._control() as control:
            control.StartRun(control_pb2.StartRunRequest(fab=internals.fab_to_proto(app)))
        with self._runtime() as runtime:
            token = acquire(runtime, app.hash_str)
        grid = internals.HttpGrid(self.address, root_certificates=(self.keys / "ca.crt").read_bytes(), token=token)
        internals.take_over_requests(grid, _Persistent(self, min(60.0, deadline or 60.0)))
        with self._runtime(token) as runtime:
            pulled = runtime.PullTaskInput(runtime_pb2.PullTaskInputRequest())
            identity = internals.TaskIdentity
            identity.task_id, identity.run_id = pulled.task_id, pulled.run.run_id
            identity.node_id = pulled.context.node_id
            grid.set_run(internals.run_from_proto(pulled.run))
            output = runtime_pb2.PushTaskOutputRequest(sub_status=SubStatus.FAILED, details="interrupted")
            try:
                with heartbeats(runtime):
                    yield grid
                output = runtime_pb2.PushTaskOutputRequest(sub_status=SubStatus.COMPLETED)
            finally:
                pulled.context.ClearField("state")
                output.context.CopyFrom(pulled.context)
                with suppress(httpx.HTTPError):
                    runtime.PushTaskOutput(output)
                grid.close()

    def raise_lost(self, error: httpx.TransportError) -> None:
        """Raise LinkLostError for an error of the network."""
        time.sleep(0.2)  # a SuperLink that was just killed resets connections before it shows its exit code
        self.check()
        raise LinkLostError(self.address, f"expected a SuperLink that answers, got {error}") from None

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        """A client of the control API. What the SuperLink, or whatever is at its address, refuses is a UserError."""
        client = ControlHttpClient.from_server_address(
            self.address,
            insecure=False,
            root_certificates=(self.keys / "ca.crt").read_bytes(),
            interceptors=[
                internals.interceptors.RuntimeVersionHttpInterceptor(component_name="flwr CLI"),
                OperatorInterceptor(self.keys / "secret"),
            ],
        )
        try:
            with client:
                yield client
        except httpx.TransportError as error:
            self.raise_lost(error)
        except httpx.HTTPStatusError as error:
            answer = internals.FlowerError.from_json(error.response.text)
            fault = answer.message if answer else f"{error.response.status_code} {error.response.reason_phrase}"
            hint = "" if answer else "; sites connect to another port than operators"
            raise UserError(self.address, f"expected a SuperLink that accepts this, got: {fault}{hint}") from None

    @contextmanager
    def _runtime(self, token: str = "") -> Iterator[RuntimeHttpClient]:
        try:
            with runtime_client(self.address, self.keys / "ca.crt", self.keys / "secret", token) as client:
                yield client
        except httpx.TransportError as error:
            self.raise_lost(error)


class OperatorInterceptor:
    """Adds the operator's token to every request."""

    def __init__(self, secret: Path) -> None:
        self._token = operator_token(secret.read_bytes())

    def intercept(self, context: internals.ProtobufRequestContext, call_next: internals.ProtobufCall) -> httpx.Response:
        """Add the token."""
        context.request.headers[TOKEN] = self._token
        return call_next(context)


class _Persistent(OperatorInterceptor):
    """Repeats the requests of a run for a while, and raises RunEndedError once the run has ended.

    Flower itself would repeat them for ever, and end its own process with SIGINT.
    """

    def __init__(self, link: SuperLink, seconds: float) -> None:
        super().__init__(link.keys / "secret")
        self._link, self._seconds = link, seconds

    def intercept(self, context: internals.ProtobufRequestContext, call_next: internals.ProtobufCall) -> httpx.Response:
        end = time.monotonic() + self._seconds
        while True:
            self._link.check()
            try:
                response = super().intercept(context, call_next)
            except httpx.TransportError as error:
                if time.monotonic() >= end:
                    self._link.raise_lost(error)
            else:
                if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                    raise RunEndedError("the SuperLink has ended this Flower run")
                if response.status_code < 502 or time.monotonic() >= end:  # 502 to 504: it is too busy to answer
                    return response
            time.sleep(0.5)


def runtime_client(address: str, ca: Path | None, secret: Path, token: str = "") -> RuntimeHttpClient:
    """A client of a SuperLink's or SuperNode's Runtime API.

    :param ca: the CA of its certificate; without one it uses plain HTTP.
    :param token: the token of an acquired task; without one, the client may acquire tasks.
    """
    auth = (
        internals.interceptors.RuntimeTokenHttpInterceptor(token)
        if token
        else internals.interceptors.SuperExecAuthHttpInterceptor(
            master_secret=secret.read_bytes(), protected_methods=frozenset({"/flwr.proto.Runtime/AcquireTask"})
        )
    )
    return RuntimeHttpClient.from_server_address(
        address,
        insecure=ca is None,
        root_certificates=ca.read_bytes() if ca else None,
        interceptors=[
            internals.interceptors.RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            auth,
            OperatorInterceptor(secret),
        ],
    )


def acquire(client: RuntimeHttpClient, app: str) -> str:
    """Wait for the task of the run whose app has this hash; returns the token to carry it out.

    A request for a type of tasks would get, and so take away, the oldest of all runs.
    """
    while True:
        answer = client.AcquireTask(runtime_pb2.AcquireTaskRequest(agentapp_fab_hashes=[app]))
        if answer.token:
            return str(answer.token)
        time.sleep(0.2)


@contextmanager
def heartbeats(client: RuntimeHttpClient) -> Iterator[None]:
    """Send the heartbeats of a task. Flower's own end the process when the run is over; these do not."""

    def beat() -> bool:
        try:
            client.SendTaskHeartbeat(runtime_pb2.SendTaskHeartbeatRequest())
        except httpx.TransportError:
            return False
        except httpx.HTTPStatusError as error:
            log.info("a task is over: %s", error)
        return True

    sender = internals.HeartbeatSender(beat)
    sender.start()
    try:
        yield
    finally:
        sender.stop()
