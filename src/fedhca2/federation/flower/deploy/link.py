"""The coordinator's keys, and its SuperLink with the proxy in front of it: the only way into a federation."""

import logging
import socket
import ssl
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime, timedelta
from inspect import signature
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex
from subprocess import Popen

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_ssh_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedhca2.errors import UserError
from fedhca2.experiment.clients import name_fault
from fedhca2.federation.flower.deploy.processes import listen, start, stop
from fedhca2.federation.flower.deploy.superlink import LinkLostError, SuperLink, host_and_port
from fedhca2.whole_files import ORDINARY, private_folder, require_empty, write_whole

CA_NAME = "fedhca2 test CA"
OPERATOR_FILES = ("ca.crt", "secret")
log = logging.getLogger("fedhca2.server")


def make_keys(folder: Path, sites: Sequence[str], hosts: Sequence[str] = (), days: int = 365) -> None:
    """Write everything needed for a federation with TLS and authenticated sites.

    `ca.crt`, `ca.key`; `superlink.crt`, `superlink.key` for these hosts and loopback; `secret` for the coordinator;
    and for every site a folder `sites/NAME` with `node.key`, `node.pub`, `secret` and `ca.crt`, to be taken there.

    :param days: how long the certificates are valid.
    """
    require_empty(folder)
    if faults := list(filter(None, map(name_fault, sites))):
        raise UserError("--sites", faults[0])
    private_folder(folder)
    authority, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    may, public = ("digital_signature", "key_cert_sign", "crl_sign"), authority.public_key()
    of_authority = {
        x509.BasicConstraints(ca=True, path_length=0): True,
        x509.KeyUsage(**{use: use in may for use in signature(x509.KeyUsage).parameters}): True,
        x509.SubjectKeyIdentifier.from_public_key(public): False,
    }
    of_server = {
        x509.SubjectAlternativeName([_general_name(host) for host in ("localhost", "127.0.0.1", "::1", *hosts)]): False,
        x509.BasicConstraints(ca=False, path_length=None): True,
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]): False,
        x509.AuthorityKeyIdentifier.from_issuer_public_key(public): False,
    }
    ca = _certificate(CA_NAME, public, of_authority, authority, days)
    certificate = _certificate("fedhca2 SuperLink", key.public_key(), of_server, authority, days)
    for name, certified, own in (("ca", ca, authority), ("superlink", certificate, key)):
        private = own.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_whole(folder / f"{name}.key", private)
        write_whole(folder / f"{name}.crt", certified, ORDINARY)
    write_whole(folder / "secret", token_hex(32).encode())
    for site in sites:
        make_site_keys(folder / "sites" / site, ca)


def make_site_keys(folder: Path, ca: bytes) -> None:
    """Write the files of one site. A site can also create its own key and hand over only `node.pub`."""
    private_folder(folder)
    key = ec.generate_private_key(ec.SECP384R1())
    write_whole(folder / "node.key", key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH) + b"\n"
    write_whole(folder / "node.pub", public, ORDINARY)
    write_whole(folder / "secret", token_hex(32).encode())
    write_whole(folder / "ca.crt", ca, ORDINARY)


def check_keys(folder: Path, names: Sequence[str]) -> None:
    """Raise UserError unless a folder has these files of `make_keys`, and each can be used."""
    in_sites = "node.key" in names and (folder / "sites").is_dir()
    hint = f"; a site's own folder is {folder}/sites/NAME" if in_sites else ""
    for path in (folder / name for name in names):
        try:
            content = path.read_bytes()
            if path.suffix == ".crt":
                x509.load_pem_x509_certificates(content)
            elif path.name == "node.key":
                if not isinstance(key := load_ssh_private_key(content, None), ec.EllipticCurvePrivateKey):
                    raise ValueError(f"{type(key).__name__}, which is not an elliptic-curve key")
            elif path.suffix == ".key":
                load_pem_private_key(content, None)
            elif not content:
                raise ValueError("an empty file")
        except OSError as error:
            fault = f"expected a folder with {', '.join(names)}, got {error.strerror}: {path}{hint}"
            raise UserError(f"--keys {folder}", fault) from None
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            fault = f"{path}: expected a file as 'flower keys' writes it, got {error}"
            raise UserError(f"--keys {folder}", fault) from None


def _certificate(
    name: str,
    key: ec.EllipticCurvePublicKey,
    extensions: Mapping[x509.ExtensionType, bool],
    authority: ec.EllipticCurvePrivateKey,
    days: int,
) -> bytes:
    """A certificate in PEM.

    :param extensions: with each, whether it is critical.
    """
    issuer, subject = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (CA_NAME, name))
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))  # since clocks differ and are set back
        .not_valid_after(now + timedelta(days=days))
    )
    for extension, critical in extensions.items():
        builder = builder.add_extension(extension, critical)
    return builder.sign(authority, hashes.SHA256()).public_bytes(Encoding.PEM)


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


class Link:
    """The SuperLink, its proxy, and other processes that need them. Sites connect to the proxy.

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
        """Check the keys; nothing is started yet.

        :param public: host:port that sites connect to; port 0 is any that is free, and is replaced by its number.
        :param superlink: host:port of the SuperLink, on loopback.
        :param quota: bytes that a site may send for each message it receives; 2 GiB by default.
        :param options: further options of `flower-superlink`.
        """
        check_keys(keys, (*OPERATOR_FILES, "superlink.crt", "superlink.key"))
        self.keys, self.public, self.quota, self.options, self.logs = keys, public, quota or 2 * 2**30, options, logs
        self.superlink = SuperLink(superlink, keys)
        self.processes: dict[str, Popen[bytes]] = {}
        self._restart: dict[str, Callable[[], Popen[bytes]]] = {}
        self._home = tempfile.TemporaryDirectory(prefix="fedhca2-link-")
        self._hint = f"; its log is in {logs}" if logs else ""
        self._fault = ""
        self._over = threading.Event()
        self._supervisor = threading.Thread(target=self._supervise, name="supervisor", daemon=True)

    def __enter__(self) -> "Link":
        with ExitStack() as stack:
            stack.callback(self.__exit__)
            public, self.public = listen(self.public, "--listen")
            with public:  # before the SuperLink takes its seconds to start
                listening, address = listen(self.superlink.address, "--superlink")
                if self.logs:
                    private_folder(self.logs)
                host, port = host_and_port(address, "--superlink")
                command = [
                    *("fedhca2.federation.flower.deploy.processes", "superlink", "--host", host, "--port", str(port)),
                    *("--ssl-ca-certfile", str(self.keys / "ca.crt")),
                    *("--ssl-certfile", str(self.keys / "superlink.crt")),
                    *("--ssl-keyfile", str(self.keys / "superlink.key")),
                    *("--enable-supernode-auth", "--isolation", "process"),
                    *("--superexec-auth-secret-file", str(self.keys / "secret")),
                    *self.options,
                ]
                self.processes["superlink"] = self._start("superlink", listening, command)
                self.superlink = SuperLink(address, self.keys, self.check)
                self.processes["proxy"] = self._start_proxy(public)
            self._restart["proxy"] = self._start_proxy
            self._supervisor.start()
            stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        if self._supervisor.is_alive():
            self._supervisor.join()
        stop(reversed(self.processes.values()))
        self._home.cleanup()

    def add(self, name: str, start: Callable[[], "Popen[bytes]"]) -> None:
        """Start a process now, and whenever it has ended."""
        self.processes[name], self._restart[name] = start(), start

    def register(self, names: Iterable[str]) -> None:
        """Admit the sites with these names."""
        for name in names:
            self.superlink.register(name, self.keys / "sites" / name / "node.pub")

    def check(self) -> None:
        """Raise LinkLostError if the federation has lost a process that cannot be started again."""
        code = self.processes["superlink"].poll()
        if code is not None and not self._over.is_set():
            self._fault = f"the SuperLink has ended with code {code}, and the run with it"
        if self._fault:
            raise LinkLostError("", self._fault)

    def wait(self) -> None:
        """Wait until the federation has lost such a process, and raise LinkLostError."""
        self._supervisor.join()
        self.check()

    def _supervise(self) -> None:
        """Start again what has ended, until something cannot be."""
        while not self._fault and not self._over.wait(1.0):
            try:
                self.check()
                for name, start_again in list(self._restart.items()):
                    code = self.processes[name].poll()
                    if code is None or self._over.is_set():
                        continue
                    if code == 2:  # the exit code of a command with a mistake in its input, which would end again
                        raise UserError(name, f"stopped with exit code {code}{self._hint}")
                    log.warning("%s has ended with code %s and is started again", name, code)
                    self.processes[name] = start_again()
            except (UserError, OSError) as error:
                self._fault = str(error)

    def _start_proxy(self, listening: socket.socket | None = None) -> "Popen[bytes]":
        """Start or restart the proxy; sites only notice a pause."""
        listening = listening or listen(self.public, "--listen")[0]
        command = ["fedhca2.federation.flower.deploy.proxy", self.public, self.superlink.address]
        return self._start("proxy", listening, [*command, str(self.keys), str(self.quota)])

    def _start(self, name: str, listening: socket.socket, command: Sequence[str]) -> "Popen[bytes]":
        """Start a Python module that gets a socket to listen on, and wait until it does.

        Its port was bound in this process, so no one else can have it, and there is no doubt who answers there.
        """
        with listening:
            address = listening.getsockname()
            output = self.logs / f"{name}.log" if self.logs else None
            process = start(["python", "-m", *command], Path(self._home.name) / name, output, listening)
        with ExitStack() as stack:
            stack.callback(stop, [process])
            self._wait_until_ready(name, address, process)
            stack.pop_all()
        return process

    def _wait_until_ready(self, name: str, address: tuple[str, int], process: "Popen[bytes]") -> None:
        """Return when the process has shown its certificate, which should take less than a minute."""
        host, port = address[:2]
        here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
        context = ssl.create_default_context(cafile=str(self.keys / "ca.crt"))
        context.check_hostname = False  # sites know it by other names
        end = time.monotonic() + 60
        while time.monotonic() < end and process.poll() is None and not self._over.is_set():
            try:
                with socket.create_connection((here, port), timeout=2) as plain, context.wrap_socket(plain):
                    return
            except ssl.SSLCertVerificationError as error:
                fault = f"expected a certificate that {self.keys / 'ca.crt'} has signed, got {error.verify_message}"
                raise UserError(self.keys / "superlink.crt", fault) from None
            except OSError:
                time.sleep(0.1)
        code = process.poll()
        what = "no answer in 60 s" if code is None else f"exit code {code}"
        raise UserError(f"{here}:{port}", f"expected the {name} to start, got {what}{self._hint}")


@contextmanager
def coordinator_link(
    superlink: str | None, keys: Path, names: Iterable[str], public: str, quota: int | None, out: Path
) -> Iterator[tuple[SuperLink, str]]:
    """A SuperLink for a run, with the address that sites connect to, which is empty for one that runs already.

    :param superlink: host:port of a running SuperLink; by default one is started for the time of the run.
    :param keys: the coordinator's folder of keys.
    :param names: the sites that a new SuperLink admits.
    :param public: host:port that sites connect to at a new one.
    :param quota: bytes that a site may send for each message it receives.
    :param out: the run's folder; the logs of a new one are in the same parent folder.
    """
    if superlink:
        check_keys(keys, OPERATOR_FILES)
        yield SuperLink(superlink, keys), ""
        return
    with Link(keys, public, logs=out.with_name(f"{out.name}.link"), quota=quota) as link:
        link.register(names)
        yield link.superlink, link.public
