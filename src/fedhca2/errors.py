"""Errors to show to a user: the place, what was expected, and what was found instead."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple, Self


class Fault(NamedTuple):
    """A mistake in a user's input: its place, such as `clients[2].tasks` or a file, and "expected X, got Y"."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message


class UserError(ValueError):
    """Mistakes in a user's input."""

    def __init__(self, where: str | Path | Iterable[str], message: str | None = None) -> None:
        """:param where: the place of the mistake; empty if there is none.
        :param message: what was expected, and what was found.
        """
        if message is None:  # the old way, one text for each mistake; goes when nobody uses it any more
            texts = (text.partition(": ") for text in where)  # type: ignore[union-attr]
            self.faults = [Fault(head, tail) if colon else Fault("", head) for head, colon, tail in texts]
        else:
            self.faults = [Fault(str(where), message)]
        super().__init__("\n".join(self.lines))

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> Self:
        """Report several mistakes at once."""
        error = cls("", "")
        error.faults = list(faults)
        error.args = ("\n".join(error.lines),)
        return error

    @property
    def lines(self) -> list[str]:
        """A line for each mistake."""
        return [str(fault) for fault in self.faults]
