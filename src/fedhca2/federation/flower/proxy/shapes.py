"""What objects are made of: the same at all times.

The SuperLink keeps the children that an object had when it was first announced, and puts trees together from these. So
trees that are small on their way could grow together behind the proxy, one below the leaves of the other, until
following them takes for ever. Here an object that had children once has the same ones in every tree after.
"""

from collections import OrderedDict
from hashlib import sha256

from flwr.proto.message_pb2 import ObjectTree

KEPT = 2**18  # objects with children that are remembered: four of each reply


class Shapes:
    """The children of every object that has some."""

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
