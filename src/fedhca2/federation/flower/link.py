"""A SuperLink on loopback and the proxy in front of it, as processes: the only way into a federation."""

import logging
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen

from fedhca2.errors import UserError
from fedhca2.federation.flower.processes import free_port, start, stop
from fedhca2.federation.flower.superlink import SuperLink
from fedhca2.whole_files import private_folder

PATIENCE = 60.0  # seconds for a process to start
QUOTA = 2 * 2**30  # bytes that a site may send to the SuperLink for each message it receives
log = logging.getLogger("fedhca2.server")


class Link:
    """The two processes. Sites connect to the proxy; the coordinator's own commands connect to the SuperLink."""

    def __init__(
        self,
        keys: Path,
        public: str,
        superlink: str | None = None,
        *,
        logs: Path | None = None,
        quota: int | None = None,
        options: Sequence[str] = (),
    ) -> None:
        """`public` and `superlink` are host:port, on loopback for the SuperLink; `options` are the SuperLink's."""
        self.keys, self.public, self.quota, self.options = keys, public, quota or QUOTA, options
        self.superlink = SuperLink.at(superlink or f"127.0.0.1:{free_port()}", keys)
        self._logs = logs
        self._home = tempfile.TemporaryDirectory(prefix="fedhca2-link-")
        self.processes: dict[str, Popen[bytes]] = {}

    def __enter__(self) -> "Link":
        try:
            self._start("superlink", self._superlink_command(), self.superlink.address)
            self.start_proxy()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        stop(reversed(self.processes.values()))
        self._home.cleanup()

    def start_proxy(self) -> None:
        """Start or restart the proxy; sites only notice a pause."""
        command = ["python", "-m", "fedhca2.federation.flower.proxy", "--listen", self.public]
        command += ["--superlink", self.superlink.address, "--keys", str(self.keys), "--quota", str(self.quota)]
        self._start("proxy", command, self.public)

    def register(self, names: Iterable[str]) -> None:
        """Admit the sites with these names."""
        for name in names:
            self.superlink.register(name, self.keys / "sites" / name / "node.pub")

    def keep(self) -> None:
        """Wait until the SuperLink ends; a proxy that ends is restarted."""
        while self.processes["superlink"].poll() is None:
            time.sleep(1.0)
            if (code := self.processes["proxy"].poll()) is not None:
                log.warning("the proxy ended with code %s and is restarted", code)
                self.start_proxy()
        raise UserError([f"the SuperLink ended with code {self.processes['superlink'].returncode}"])

    def _start(self, name: str, command: Sequence[str], address: str) -> None:
        output = self._logs / f"{name}.log" if self._logs else None
        self.processes[name] = start(command, Path(self._home.name) / name, output)
        _wait_until_open(address, self.processes[name])

    def _superlink_command(self) -> list[str]:
        """The command of a SuperLink with TLS and authenticated sites, for those who know the secret."""
        host, _, port = self.superlink.address.rpartition(":")
        return [
            *("python", "-m", "fedhca2.federation.flower.guarded_superlink"),
            *("--host", host, "--port", port),
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
) -> Iterator[SuperLink]:
    """The running SuperLink at an address, or a new one for these sites during a run in this folder."""
    if superlink:
        yield SuperLink.at(superlink, keys)
        return
    logs = private_folder(out.with_name(f"{out.name}.link"))
    with Link(keys, public, logs=logs, quota=quota) as link:
        link.register(names)
        yield link.superlink


def _wait_until_open(address: str, process: Popen[bytes]) -> None:
    """Return when the process accepts connections."""
    host, _, port = address.rpartition(":")
    here = {"0.0.0.0": "127.0.0.1", "[::]": "::1"}.get(host, host.strip("[]"))
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection((here, int(port)), timeout=2).close()
            return
        except OSError:
            time.sleep(0.1)
    raise UserError([f"{address}: should accept connections, found that its process ended with code {process.poll()}"])
