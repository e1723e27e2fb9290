"""The SuperLink's operator interface: the token that opens it, and the registered keys.

This module and `proxy` do not need torch, so that a proxy is a small process.
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

TOKEN = "fedhca2-operator"  # the header of requests from the coordinator or its proxy


def operator_token(secret: bytes) -> str:
    """The token that the coordinator's processes show to their SuperLink; it cannot be computed without the secret."""
    return hmac.digest(secret, b"fedhca2 operator", "sha256").hex()


class OperatorInterceptor:
    """Adds the token to every request."""

    def __init__(self, secret: Path) -> None:
        self._token = operator_token(secret.read_bytes())

    def intercept(self, context: ProtobufRequestContext, call_next: ProtobufCall) -> httpx.Response:
        """Add the token."""
        context.request.headers[TOKEN] = self._token
        return call_next(context)


@dataclass(frozen=True)
class Registration:
    """A registered key, possibly evicted since; times are ISO 8601, from the SuperLink."""

    node: int
    name: str
    key: bytes  # PEM
    registered: str
    evicted: str  # empty if it was not

    @property
    def fingerprint(self) -> str:
        """The fingerprint as `ssh-keygen -lf node.pub` prints it."""
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
    """Every key that this SuperLink ever learned of, the earliest first."""
    nodes = client.ListNodes(ListNodesRequest()).nodes_info
    listed = [
        Registration(node.node_id, node.name, node.public_key, node.registered_at, node.unregistered_at)
        for node in nodes
    ]
    return sorted(listed, key=lambda one: (one.registered, one.node))
