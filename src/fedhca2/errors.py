"""What a user is told of: something that was expected, and what was found instead."""

from collections.abc import Iterable


class UserError(ValueError):
    """What is wrong with a user's input, one line per mistake: the place, what was expected, what was found."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))
