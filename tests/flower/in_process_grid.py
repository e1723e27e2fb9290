"""A Grid in this process: every message goes through Flower's own serialisation, as over a network."""

from collections.abc import Callable, Iterable
from types import SimpleNamespace

from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.server.superlink.linkstate.utils import create_message_error_unavailable_res_message
from flwr.serverapp.grid import Grid
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.task_identity import TaskIdentity

App = Callable[[Message, Context], Message]


def travel(message: Message) -> Message:
    """The message as it arrives."""
    objects = {key: found.deflate() for key, found in get_all_nested_objects(message).items()}
    arrived = inflate_object_from_contents(message.object_id, objects)
    assert isinstance(arrived, Message)
    arrived.metadata.__dict__["_message_id"] = message.object_id
    return arrived


class InProcessGrid(Grid):
    """Nodes are apps in memory; a message is answered when its reply is pulled."""

    def __init__(self, apps: dict[str, App]) -> None:
        TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 0
        self.apps = {node: (name, app) for node, (name, app) in enumerate(apps.items(), start=1)}
        self.sent: dict[str, Message] = {}
        self.down: list[Message] = []
        self.up: list[Message] = []
        self.silent: set[str] = set()  # nodes that do not answer orders
        self.deaf: set[str] = set()  # nodes that do not answer anything
        self.dead: set[str] = set()  # nodes that are gone, and still listed
        self.lives: dict[str, int] = {}  # how often a node has come back

    def replace(self, name: str, change: Callable[[App], App]) -> None:
        """Replace a node's app."""
        self.apps = {node: (own, change(app) if own == name else app) for node, (own, app) in self.apps.items()}

    def rename(self, name: str, registered: str) -> None:
        """Register a node's key under another name."""
        self.apps = {node: (registered if own == name else own, app) for node, (own, app) in self.apps.items()}

    def restart(self, name: str) -> None:
        """Restart a node so fast that no one notices: messages sent to it are lost."""
        self.lives[name] = self.lives.get(name, 0) + 1
        self.lose(name)

    def lose(self, name: str) -> None:
        """Lose the messages that were sent to a node and not answered yet."""
        lost = {key for key, message in self.sent.items() if self.apps[message.metadata.dst_node_id][0] == name}
        self.sent = {key: message for key, message in self.sent.items() if key not in lost}

    def leave(self, name: str) -> dict[int, tuple[str, App]]:
        """Remove a node; returns it so that it can come back."""
        gone = {node: found for node, found in self.apps.items() if found[0] == name}
        self.apps = {node: found for node, found in self.apps.items() if node not in gone}
        return gone

    def deliver(self) -> None:
        """Let sites read messages that need no answer."""
        self.pull_messages(list(self.sent))

    def set_run(self, run):
        pass

    @property
    def run(self):
        return SimpleNamespace(run_id=1)

    def create_message(self, *args, **kwargs):
        raise AssertionError("the fleet makes its messages itself")

    def get_node_ids(self):
        return list(self.apps)

    def get_nodes(self):
        return [
            NodeInfo(node_id=node, name=name, last_activated_at=str(self.lives.get(name, 0)))
            for node, (name, _) in self.apps.items()
        ]

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        identities = []
        for message in messages:
            self.sent[message.object_id] = travel(message)
            self.down.append(self.sent[message.object_id])
            identities.append(message.object_id)
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        replies = []
        for identity in message_ids:
            message = self.sent.get(identity)
            if message is None:
                continue
            name, app = self.apps.get(message.metadata.dst_node_id, ("", None))
            if name in self.deaf or (name in self.silent and message.metadata.message_type == "train"):
                continue
            del self.sent[identity]
            if app is None or name in self.dead:
                replies.append(create_message_error_unavailable_res_message(message.metadata, "node_unavail"))
                continue
            context = Context(0, message.metadata.dst_node_id, {}, RecordDict(), {})
            try:
                reply = travel(app(message, context))
            except Exception as error:  # as a SuperNode does
                reply = Message(Error(2, f"{type(error)}:<'{error}'>"), reply_to=message)
            self.up.append(reply)
            replies.append(reply)
        return replies

    def send_and_receive(self, messages, *, timeout=None):
        raise AssertionError("the fleet never waits inside Flower")
