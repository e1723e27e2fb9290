"""One clear line for everything that is wrong with a config."""

from collections.abc import Iterable

from pydantic import ValidationError


class ConfigError(ValueError):
    """What is wrong with an experiment, one line per mistake: the place, what was expected, what was found."""

    def __init__(self, lines: Iterable[str]) -> None:
        self.lines = list(lines)
        super().__init__("\n".join(self.lines))


def place(location: Iterable[int | str]) -> str:
    """A place in a config as one would write it.

    >>> place(("clients", 2, "tasks", 0))
    'clients[2].tasks[0]'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def describe(error: ValidationError) -> list[str]:
    """A line for each thing that pydantic found."""
    lines = []
    for found in error.errors(include_url=False):
        where = place(found["loc"]) or "config"
        match found["type"]:
            case "missing":
                lines.append(f"{where}: missing")
            case "value_error":
                lines.append(f"{where}: {found['ctx']['error']}")
            case _:
                lines.append(f"{where}: {found['msg'][0].lower()}{found['msg'][1:]}, found {found['input']!r}")
    return lines
