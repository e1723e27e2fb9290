"""Errors to show to a user: what was expected, and what was found instead."""

from collections.abc import Iterable


class UserError(ValueError):
    """Mistakes in a user's input, one line each: the place, what was expected, what was found."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))
