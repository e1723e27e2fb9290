"""Keys: a test CA, the SuperLink's certificate, a key for every site, and the executors' secrets."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from inspect import signature
from ipaddress import ip_address
from pathlib import Path
from secrets import token_hex

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
from fedhca2.whole_files import ORDINARY, private_folder, write_whole

LOOPBACK = ("localhost", "127.0.0.1", "::1")
CA_MAY = ("digital_signature", "key_cert_sign", "crl_sign")
OPERATOR_FILES = ("ca.crt", "secret")
LINK_FILES = (*OPERATOR_FILES, "superlink.crt", "superlink.key")
SITE_FILES = ("ca.crt", "secret", "node.key")
EARLIER = timedelta(days=1)  # certificates are valid from before they were made, since clocks differ and are set back


def make_keys(folder: Path, sites: Sequence[str], hosts: Sequence[str] = (), days: int = 365) -> None:
    """Write everything needed for a federation with TLS and authenticated sites.

    `ca.crt`, `ca.key`; `superlink.crt`, `superlink.key` for these hosts and loopback; `secret` for the coordinator;
    and for every site a folder `sites/NAME` with `node.key`, `node.pub`, `secret` and `ca.crt`, to be taken there.
    """
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"{folder}: should be a new or empty folder, found files in it")
    if faults := list(filter(None, map(name_fault, sites))):
        raise UserError([f"--sites: {faults[0]}"])
    private_folder(folder)
    authority, certificate = _authority(days)
    write_whole(folder / "ca.key", _pem(authority))
    ca = certificate.public_bytes(Encoding.PEM)
    write_whole(folder / "ca.crt", ca, ORDINARY)
    key = ec.generate_private_key(ec.SECP256R1())
    signed = _sign(key.public_key(), [*LOOPBACK, *hosts], authority, certificate, days)
    write_whole(folder / "superlink.key", _pem(key))
    write_whole(folder / "superlink.crt", signed.public_bytes(Encoding.PEM), ORDINARY)
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


def require_keys(folder: Path, names: Sequence[str]) -> None:
    """Raise UserError unless a folder has these files of `make_keys`, and each can be used."""
    hint = (
        f"; a site's own folder is {folder}/sites/NAME" if "node.key" in names and (folder / "sites").is_dir() else ""
    )
    for name in names:
        path = folder / name
        try:
            _use(name, path.read_bytes())
        except OSError as error:
            expected = f"expected a folder with {', '.join(names)}"
            raise UserError([f"--keys {folder}: {expected}, got {error.strerror}: {path}{hint}"]) from None
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            raise UserError(
                [f"--keys {folder}: {path}: expected a file as 'flower keys' writes it, got {error}"]
            ) from None


def _use(name: str, content: bytes) -> None:
    """Read a file of `make_keys` as others will; raises ValueError, TypeError or UnsupportedAlgorithm if it is not."""
    if name.endswith(".crt"):
        x509.load_pem_x509_certificates(content)
    elif name == "node.key":
        if not isinstance(key := load_ssh_private_key(content, None), ec.EllipticCurvePrivateKey):
            raise ValueError(f"{type(key).__name__}, which is not an elliptic-curve key")
    elif name.endswith(".key"):
        load_pem_private_key(content, None)
    elif not content:
        raise ValueError("an empty file")


def _authority(days: int) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedhca2 test CA")])
    usage = x509.KeyUsage(**{use: use in CA_MAY for use in signature(x509.KeyUsage).parameters})
    certificate = (
        _builder(name, name, key.public_key(), days)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return key, certificate


def _sign(
    key: ec.EllipticCurvePublicKey,
    hosts: Sequence[str],
    authority: ec.EllipticCurvePrivateKey,
    issuer: x509.Certificate,
    days: int,
) -> x509.Certificate:
    """Issue a server's certificate for these names and addresses."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "fedhca2 SuperLink")])
    alternatives = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key())
    return (
        _builder(name, issuer.subject, key, days)
        .add_extension(alternatives, critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .sign(authority, hashes.SHA256())
    )


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(now - EARLIER)
        .not_valid_after(now + timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
