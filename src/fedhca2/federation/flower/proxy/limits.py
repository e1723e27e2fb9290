"""What a node may leave at the SuperLink: how much of it, and made of what."""

from collections import OrderedDict
from dataclasses import dataclass
from hashlib import sha256

from flwr.proto.message_pb2 import ObjectTree

PUSHES = 8  # announcements of a reply: the SuperLink takes one, and a bad network makes it several


@dataclass
class Allowance:
    """What a node has left of it. The server gives it a message when it is done with the last answer."""

    quota: int  # bytes
    bytes: int = 0
    pushes: int = 0

    def take(self, size: int, announces: bool) -> str:
        """Count a request; why it is too much, or nothing."""
        if announces and self.pushes >= PUSHES:
            return f"a message should be answered once, found {self.pushes} answers before this one"
        if self.bytes + size > self.quota:
            return f"an answer should have at most {self.quota} B (--quota), found {self.bytes + size}"
        self.bytes += size
        self.pushes += announces
        return ""

    def give_back(self, size: int, announces: bool) -> None:
        """A request was not taken after all."""
        self.bytes -= size
        self.pushes -= announces

    def renew(self) -> None:
        """The server has asked something new."""
        self.bytes = self.pushes = 0


KEPT = 2**18  # objects with children that are remembered: four of each reply


class Shapes:
    """The children of every object that has some: the same at all times.

    The SuperLink keeps the children that an object had when it was first announced, and puts trees together from
    these. So trees that are small on their way could grow together behind the proxy, one below the leaves of the
    other, until following them takes for ever. Here an object that had children once has the same ones in every tree.
    """

    def __init__(self, kept: int = KEPT) -> None:
        self._kept = kept
        self._children: OrderedDict[bytes, bytes] = OrderedDict()  # both as hashes

    def fault_of(self, tree: ObjectTree) -> str:
        """Why a tree that is small enough is refused; if it is not, it is remembered."""
        shapes: dict[bytes, bytes] = {}
        waiting = [tree]
        while waiting:
            one = waiting.pop()
            name = bytes.fromhex(one.object_id)
            shape = sha256("".join(child.object_id for child in one.children).encode()).digest()
            if self._children.get(name, shape) != shape:
                return "an object should have the children that it had before, found others"
            if one.children:
                shapes[name] = shape
                waiting += one.children
        self._children.update(shapes)
        while len(self._children) > self._kept:
            self._children.popitem(last=False)
        return ""
