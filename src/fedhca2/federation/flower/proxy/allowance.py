"""How much a node may leave at the SuperLink before the server has something new to ask of it."""

from dataclasses import dataclass

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
