"""The SuperLink's interfaces for the operator: the token that opens them, and who is registered.

This module and `proxy` need no torch: a proxy is a small process.
"""

import hmac
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import ssh_key_fingerprint
from flwr.proto.control_pb2 import ListNodesRequest

from fedhca2.federation.flower.internals import (
    ControlHttpClient,
    ProtobufCall,
    ProtobufRequestContext,
    RuntimeVersionHttpInterceptor,
    bytes_to_public_key,
)

TOKEN = "fedhca2-operator"  # the header of a request that comes from the coordinator, or through its proxy


def operator_token(secret: bytes) -> str:
    """What the coordinator's processes show to their SuperLink; nobody can work it out who cannot read the secret."""
    return hmac.digest(secret, b"fedhca2 operator", "sha256").hex()


class OperatorInterceptor:
    """Shows the token with every request."""

    def __init__(self, secret: Path) -> None:
        self._token = operator_token(secret.read_bytes())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the token."""
        context.request.headers[TOKEN] = self._token
        return call_next(context)


@dataclass(frozen=True)
class Registration:
    """A key that was registered, and maybe evicted since; times are ISO 8601, as the SuperLink has them."""

    node: int
    name: str
    key: bytes  # PEM
    registered: str
    evicted: str  # or nothing

    @property
    def fingerprint(self) -> str:
        """As `ssh-keygen -lf node.pub` prints it."""
        digest = ssh_key_fingerprint(bytes_to_public_key(self.key), hashes.SHA256())
        return f"SHA256:{b64encode(digest).decode().rstrip('=')}"


@contextmanager
def control_client(address: str, ca: Path, secret: Path) -> Iterator[ControlHttpClient]:
    """A client of the control API."""
    client = ControlHttpClient.from_server_address(
        address,
        insecure=False,
        root_certificates=ca.read_bytes(),
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), OperatorInterceptor(secret)],
    )
    try:
        yield client
    finally:
        client.close()


def list_registrations(client: ControlHttpClient) -> list[Registration]:
    """Every key that this SuperLink was ever told of, in whatever way, the earliest first."""
    found = client.ListNodes(ListNodesRequest()).nodes_info
    listed = [
        Registration(node.node_id, node.name, node.public_key, node.registered_at, node.unregistered_at)
        for node in found
    ]
    return sorted(listed, key=lambda one: (one.registered, one.node))
