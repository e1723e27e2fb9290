"""A SuperLink on loopback and the proxy in front of it, as processes: the only way into a federation."""

import logging
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from subprocess import Popen

from fedhca2.errors import UserError
from fedhca2.federation.flower.deploy.keys import LINK_FILES, OPERATOR_FILES, require_keys
from fedhca2.federation.flower.deploy.processes import host_and_port, listen, start, stop
from fedhca2.federation.flower.deploy.superlink import LinkLostError, SuperLink
from fedhca2.whole_files import private_folder

PATIENCE = 60.0  # seconds for a process to start
PAUSE = 1.0  # seconds between checks for processes that have ended
QUOTA = 2 * 2**30  # bytes that a site may send to the SuperLink for each message it receives
CANNOT_HEAL = 2  # the exit code of a command with a mistake in its input
log = logging.getLogger("fedhca2.server")


class Link:
    """The two processes, and others that need them. Sites connect to the proxy, the coordinator to the SuperLink.

    What ends is started again, except the SuperLink: its runs end with it.
    """

    def __init__(
        self,
        keys: Path,
        public: str,
        superlink: str = "127.0.0.1:0",
        *,
        logs: Path | None = None,
        quota: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`public` and `superlink` are host:port, on loopback for the SuperLink; `options` are the SuperLink's.

        Port 0 is any that is free; once the processes have started, both addresses have a port's number.
        """
        require_keys(keys, LINK_FILES)
        self.keys, self.public, self.quota, self.options, self.logs = keys, public, quota or QUOTA, options, logs
        self.superlink = SuperLink.at(superlink, keys)
        self.processes: dict[str, Popen[bytes]] = {}
        self._again: dict[str, Callable[[], Popen[bytes]]] = {}
        self._home = tempfile.TemporaryDirectory(prefix="fedhca2-link-")
        self._fault = ""
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="keeper", daemon=True)

    def __enter__(self) -> "Link":
        try:
            public, self.public = listen(self.public, "--listen")
            with public:  # before the SuperLink takes its seconds to start
                listening, address = listen(self.superlink.address, "--superlink")
                if self.logs:
                    private_folder(self.logs)
                self.processes["superlink"] = self._start("superlink", listening, self._superlink_command(address))
                self.superlink = SuperLink(address, self.superlink.ca, self.superlink.secret, self.check)
                self.add("proxy", partial(self._start_proxy, public))
            self._again["proxy"] = self._start_proxy
            self._keeper.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._keeper.is_alive():
            self._keeper.join()
        stop(reversed(self.processes.values()))
        self._home.cleanup()

    def add(self, name: str, start: Callable[[], "Popen[bytes]"]) -> None:
        """Start a process now, and whenever it has ended."""
        self.processes[name], self._again[name] = start(), start

    def register(self, names: Iterable[str]) -> None:
        """Admit the sites with these names."""
        for name in names:
            self.superlink.register(name, self.keys / "sites" / name / "node.pub")

    def check(self) -> None:
        """Raise LinkLostError if the federation has lost a process that cannot be started again."""
        for name, process in list(self.processes.items()):
            if name not in self._again and (code := process.poll()) is not None and not self._over.is_set():
                self._replace(name, code)
        if self._fault:
            raise LinkLostError([self._fault])

    def wait(self) -> None:
        """Wait until the federation has lost such a process, and raise LinkLostError."""
        self._keeper.join()
        self.check()

    def _keep(self) -> None:
        """Start again what has ended."""
        while not self._fault and not self._over.wait(PAUSE):
            for name, process in list(self.processes.items()):
                if (code := process.poll()) is not None and not self._over.is_set():
                    self._replace(name, code)

    def _replace(self, name: str, code: int) -> None:
        """Start a process again after it has ended with this code, or say why that is impossible."""
        if name not in self._again:
            self._fault = f"the SuperLink has ended with code {code}, and the run with it"
        elif code == CANNOT_HEAL:
            self._fault = f"{name} has ended with code {code}{self._hint}"
        else:
            log.warning("%s has ended with code %s and is started again", name, code)
            try:
                self.processes[name] = self._again[name]()
            except (UserError, OSError) as error:
                self._fault = str(error)

    def _start_proxy(self, listening: socket.socket | None = None) -> "Popen[bytes]":
        """Start or restart the proxy; sites only notice a pause."""
        listening = listening or listen(self.public, "--listen")[0]
        command = [
            "fedhca2.federation.flower.deploy.proxy",
            "--listen",
            self.public,
            "--superlink",
            self.superlink.address,
        ]
        return self._start("proxy", listening, [*command, "--keys", str(self.keys), "--quota", str(self.quota)])

    def _start(self, name: str, listening: socket.socket, command: Sequence[str]) -> "Popen[bytes]":
        """Start a Python module that gets a socket to listen on, and wait until it does.

        Its port was bound in this process, so no one else can have it, and there is no doubt who answers there.
        """
        with listening:
            address = listening.getsockname()
            output = self.logs / f"{name}.log" if self.logs else None
            process = start(["python", "-m", *command], Path(self._home.name) / name, output, listening)
        try:
            self._wait_until_ready(name, address, process)
        except BaseException:
            stop([process])
            raise
        return process

    def _wait_until_ready(self, name: str, address: tuple[str, int], process: "Popen[bytes]") -> None:
        """Return when the process has shown its certificate."""
        host, port = address[:2]
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        context.check_hostname = False  # sites know it by other names
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end and process.poll() is None and not self._over.is_set():
            try:
                with socket.create_connection((here, port), timeout=2) as plain, context.wrap_socket(plain):
                    return
            except ssl.SSLCertVerificationError as error:
                fault = f"expected a certificate that {self.keys / 'ca.crt'} has signed, got {error.verify_message}"
                raise UserError([f"{self.keys / 'superlink.crt'}: {fault}"]) from None
            except OSError:
                time.sleep(0.1)
        code = process.poll()
        what = f"it ended with code {code}" if code is not None else f"no answer in {PATIENCE:g} s"
        raise UserError([f"{here}:{port}: expected the {name} to start, got: {what}{self._hint}"])

    @property
    def _hint(self) -> str:
        return f"; its log is in {self.logs}" if self.logs else ""

    def _superlink_command(self, address: str) -> list[str]:
        """The module and options of a SuperLink with TLS and authenticated sites, for those who know the secret."""
        host, port = host_and_port(address, "--superlink")
        return [
            *("fedhca2.federation.flower.deploy.guarded_superlink", "--host", host, "--port", str(port)),
            *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
            *("--ssl-certfile", str(self.keys / "superlink.crt")),
            *("--ssl-keyfile", str(self.keys / "superlink.key")),
            *("--enable-supernode-auth", "--isolation", "process"),
            *("--superexec-auth-secret-file", str(self.keys / "secret")),
            *self.options,
        ]


@contextmanager
def coordinator_link(
    superlink: str | None, keys: Path, names: Iterable[str], public: str, quota: int | None, out: Path
) -> Iterator[tuple[SuperLink, str]]:
    """The running SuperLink at an address, or a new one for these sites during a run in this folder.

    Yields it with the address that sites connect to, which is empty for one that runs already.
    """
    if superlink:
        require_keys(keys, OPERATOR_FILES)
        yield SuperLink.at(superlink, keys), ""
        return
    with Link(keys, public, logs=out.with_name(f"{out.name}.link"), quota=quota) as link:
        link.register(names)
        yield link.superlink, link.public
