"""The coordinator's side of a SuperLink: register sites, submit a run, and be its ServerApp in this process."""

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from secrets import token_hex

import httpx
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.common.constant import SubStatus
from flwr.proto.control_pb2 import RegisterNodeRequest, StartRunRequest, StopRunRequest, UnregisterNodeRequest
from flwr.proto.runtime_pb2 import (
    AcquireTaskRequest,
    PullTaskInputRequest,
    PushTaskOutputRequest,
    SendTaskHeartbeatRequest,
)

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.app_bundle import write_app
from fedhca2.federation.flower.deploy.control import (
    OperatorInterceptor,
    Registration,
    control_client,
    list_registrations,
)
from fedhca2.federation.flower.deploy.processes import host_and_port
from fedhca2.federation.flower.deploy.runtime import runtime_client
from fedhca2.federation.flower.internals import (
    ControlHttpClient,
    Fab,
    FlowerError,
    HeartbeatSender,
    HttpGrid,
    ProtobufCall,
    ProtobufRequestContext,
    RuntimeHttpClient,
    TaskIdentity,
    add_interceptor,
    build_fab_from_disk,
    fab_to_proto,
    give_up_after,
    give_up_when,
    public_key_to_bytes,
    run_from_proto,
    runtime_client_of,
    try_once,
)

POLL = 0.2
PATIENCE = 60.0  # seconds without an answer until the SuperLink is taken for lost
ENDED = (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN)  # the SuperLink's answers to a task that is over


class RunEndedError(RuntimeError):
    """The SuperLink ended an active run: it was told to, its clock jumped, or the computer slept."""

    def __init__(self) -> None:
        super().__init__("the SuperLink has ended this Flower run")


class LinkLostError(UserError):
    """The SuperLink does not answer, or the federation has lost another process for good: it is no site's fault."""


@dataclass(frozen=True)
class SuperLink:
    """The address of a SuperLink, and what is needed to talk to it."""

    address: str  # host:port
    ca: Path
    secret: Path

    check: Callable[[], None] = field(default=lambda: None, repr=False)  # raises LinkLostError if it is gone for good

    @classmethod
    def at(cls, address: str, keys: Path) -> "SuperLink":
        """The SuperLink at an address, with the coordinator's folder of keys."""
        host_and_port(address, "--superlink")
        return cls(address, keys / "ca.crt", keys / "secret")

    def register(self, name: str, public_key: Path) -> int:
        """Register a site's key under this name; returns its node's number."""
        try:
            key = load_ssh_public_key(public_key.read_bytes())
        except (ValueError, UnsupportedAlgorithm) as error:
            raise UserError([f"{public_key}: should be a public key as ssh-keygen writes it, found {error}"]) from None
        if not isinstance(key, ec.EllipticCurvePublicKey):
            raise UserError([f"{public_key}: should be an elliptic-curve key, found {type(key).__name__}"])
        with self._control() as control, self._one_line(f"should accept the key of {name}"):
            answer = control.RegisterNode(RegisterNodeRequest(public_key=public_key_to_bytes(key), name=name))
        return int(answer.node_id)

    def evict(self, name: str) -> list[int]:
        """Evict all nodes with this name; returns their numbers."""
        with self._control() as control, self._one_line("should list its sites"):
            nodes = [one.node for one in list_registrations(control) if one.name == name and not one.evicted]
            for node in nodes:
                # Flower also evicts a node that never connected, and then fails to say so.
                with suppress(httpx.HTTPStatusError):
                    control.UnregisterNode(UnregisterNodeRequest(node_id=node))
            left = {one.node for one in list_registrations(control) if not one.evicted} & {*nodes}
        if left or not nodes:
            raise UserError([f"{name}: should be evicted, found {'it still registered' if left else 'no such site'}"])
        return nodes

    def registrations(self) -> list[Registration]:
        """Every key that was ever registered."""
        with self._control() as control:
            return list_registrations(control)

    def stop(self, run: int) -> None:
        """End a run whose ServerApp is gone, so that no site waits for its next message."""
        with self._control() as control, suppress(httpx.HTTPStatusError):  # it may have ended by itself
            control.StopRun(StopRunRequest(run_id=run))

    @contextmanager
    def run(self, deadline: float | None = None) -> Iterator[HttpGrid]:
        """Start a new run of this SuperLink; the holder of the grid is its ServerApp.

        Requests raise LinkLostError once the SuperLink has not answered for a minute, or for the seconds of a round.
        """
        app = _own_app()
        with self._control() as control:
            control.StartRun(StartRunRequest(fab=fab_to_proto(app)))
        with self._runtime() as runtime:
            token = acquire(runtime, app.hash_str)
        grid = HttpGrid(self.address, root_certificates=self.ca.read_bytes(), token=token)
        add_interceptor(runtime_client_of(grid), OperatorInterceptor(self.secret))
        add_interceptor(runtime_client_of(grid), _Checked(self.check))
        _raise_when_ended(grid)
        give_up_after(grid, min(PATIENCE, deadline or PATIENCE), self._raise_lost)
        with _task(grid):
            yield grid

    def _raise_lost(self, error: Exception) -> None:
        """Report an error of the network, in the words of an operator."""
        if isinstance(error, httpx.TransportError):
            time.sleep(POLL)  # a SuperLink that was just killed resets connections before it shows its exit code
            self.check()
            raise LinkLostError([f"{self.address}: expected a SuperLink that answers, got {error}"]) from None

    @contextmanager
    def _one_line(self, wanted: str) -> Iterator[None]:
        """Report what the SuperLink, or whatever else is at its address, answers to an operator."""
        try:
            yield
        except httpx.HTTPStatusError as error:
            answer = FlowerError.from_json(error.response.text)
            what = answer.message if answer else f"{error.response.status_code} {error.response.reason_phrase}"
            hint = "; sites connect to another port than operators" if answer is None else ""
            raise UserError([f"{self.address}: {wanted}, found: {what}{hint}"]) from None

    @contextmanager
    def _control(self) -> Iterator[ControlHttpClient]:
        try:
            with control_client(self.address, self.ca, self.secret) as client:
                yield client
        except httpx.TransportError as error:
            self._raise_lost(error)

    @contextmanager
    def _runtime(self) -> Iterator[RuntimeHttpClient]:
        client = runtime_client(self.address, self.ca, self.secret)
        try:
            yield client
        except httpx.TransportError as error:
            self._raise_lost(error)
        finally:
            client.close()


def _own_app() -> Fab:
    """The Flower app of one run. No other run has the same, so its hash identifies the task to carry it out."""
    with tempfile.TemporaryDirectory() as folder:
        write_app(Path(folder), token_hex(16))
        content = build_fab_from_disk(Path(folder))
    return Fab(sha256(content).hexdigest(), content, {})


def acquire(client: RuntimeHttpClient, app: str) -> str:
    """Wait for the task of the run whose app has this hash; returns the token to carry it out.

    A request for a type of tasks would get, and so take away, the oldest of all runs.
    """
    while True:
        answer = client.AcquireTask(AcquireTaskRequest(agentapp_fab_hashes=[app]))
        if answer.token:
            return str(answer.token)
        time.sleep(POLL)


class _Checked:
    """Makes a check before every request, also before it is repeated."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check = check

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        self._check()
        return call_next(context)


def _raise_when_ended(grid: HttpGrid) -> None:
    """Raise an error if the run was ended. Flower would send SIGINT to its own process, which then ends silently."""

    def has_ended(error: Exception) -> bool:
        if isinstance(error, httpx.HTTPStatusError) and error.response.status_code in ENDED:
            raise RunEndedError from None
        return False

    give_up_when(grid, has_ended)


def _beat(client: RuntimeHttpClient) -> bool:
    """Send a heartbeat. The next message shows whether the run still exists; Flower would send SIGINT."""
    try:
        client.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    except httpx.TransportError:
        return False
    except (httpx.HTTPStatusError, RunEndedError, LinkLostError):
        pass
    return True


@contextmanager
def _task(grid: HttpGrid) -> Iterator[None]:
    """Tell the SuperLink that the task has started, and how it ended."""
    client = runtime_client_of(grid)
    pulled = client.PullTaskInput(PullTaskInputRequest())
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = (
        pulled.task_id,
        pulled.run.run_id,
        pulled.context.node_id,
    )
    grid.set_run(run_from_proto(pulled.run))
    heartbeat = HeartbeatSender(lambda: _beat(client))
    heartbeat.start()
    status, details = SubStatus.FAILED, "interrupted"
    try:
        yield
        status, details = SubStatus.COMPLETED, ""
    except Exception as error:
        details = str(error)
        raise
    finally:
        heartbeat.stop()
        try_once(grid)
        pulled.context.ClearField("state")
        with suppress(httpx.HTTPError, RunEndedError, LinkLostError):
            client.PushTaskOutput(PushTaskOutputRequest(context=pulled.context, sub_status=status, details=details))
        grid.close()
