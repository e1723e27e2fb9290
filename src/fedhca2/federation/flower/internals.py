"""Everything we use of Flower that it does not promise to keep: private modules and private attributes.

No other file uses them, so a new version of Flower only affects this file; see
docs/decisions/0012-flowers-private-modules.md.
"""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

from flwr.app.message.arraychunk import ArrayChunk
from flwr.common.serde import fab_to_proto, run_from_proto
from flwr.supercore import interceptors
from flwr.supercore.constant import FLEET_HTTP_PUBLIC_KEY_HEADER, FLEET_HTTP_SIGNATURE_HEADER, TaskType
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.error import FlowerError
from flwr.supercore.fab import Fab
from flwr.supercore.heartbeat import HeartbeatSender
from flwr.supercore.inflatable.inflatable_object import (
    InflatableObject,
    get_all_nested_objects,
    get_object_body,
    get_object_children_ids_from_object_content,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_utils import ObjectPushError
from flwr.supercore.primitives.asymmetric import (
    bytes_to_private_key,
    bytes_to_public_key,
    generate_key_pairs,
    private_key_to_bytes,
    public_key_to_bytes,
    verify_signature,
)
from flwr.supercore.protobuf.client import ProtobufCall, ProtobufRequestContext
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

if TYPE_CHECKING:
    from flwr.cli.build import build_fab_from_disk
    from flwr.superlink.cli import flower_superlink
    from flwr.superlink.grid import HttpGrid
    from flwr.supernode.cli import flower_supernode
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

# Imported on first use: each imports hundreds of modules, and a proxy needs none of them.
LARGE = {
    "HttpGrid": "flwr.superlink.grid",
    "build_fab_from_disk": "flwr.cli.build",
    "flower_superlink": "flwr.superlink.cli",
    "flower_supernode": "flwr.supernode.cli",
    "pull_task_input": "flwr.supernode.runtime.run_clientapp",
    "push_message": "flwr.supernode.runtime.run_clientapp",
    "push_task_output": "flwr.supernode.runtime.run_clientapp",
}


def __getattr__(name: str) -> Any:
    if name not in LARGE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(LARGE[name]), name)


def runtime_client_of(grid: "HttpGrid") -> RuntimeHttpClient:
    """The client through which a grid talks to its SuperLink."""
    return grid._runtime_client


def take_over_requests(grid: "HttpGrid", interceptor: Any) -> None:
    """Let an interceptor be the last to see every request of a grid, which Flower does not retry by itself any more."""
    client = runtime_client_of(grid)
    client._interceptors = (*client._interceptors, interceptor)
    grid._retry_invoker.max_tries = 1
