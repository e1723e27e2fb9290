"""The interface through which a SuperLink or SuperNode hands out tasks."""

from pathlib import Path

from fedhca2.federation.flower.deploy.control import OperatorInterceptor
from fedhca2.federation.flower.internals import (
    RuntimeHttpClient,
    RuntimeVersionHttpInterceptor,
    SuperExecAuthHttpInterceptor,
)

ACQUIRE = frozenset({"/flwr.proto.Runtime/AcquireTask"})


def runtime_client(address: str, ca: Path | None, secret: Path) -> RuntimeHttpClient:
    """A client of a SuperLink's or SuperNode's Runtime API that may take tasks; without a CA it uses plain HTTP."""
    return RuntimeHttpClient.from_server_address(
        address,
        insecure=ca is None,
        root_certificates=ca.read_bytes() if ca else None,
        interceptors=[
            RuntimeVersionHttpInterceptor(component_name="SuperExec"),
            SuperExecAuthHttpInterceptor(master_secret=secret.read_bytes(), protected_methods=ACQUIRE),
            OperatorInterceptor(secret),
        ],
    )
