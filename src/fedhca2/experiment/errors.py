"""One clear line for every fault that pydantic finds in a config."""

from collections.abc import Iterable

from pydantic import ValidationError


def place(location: Iterable[int | str]) -> str:
    """Write a location in a config as a user would.

    >>> place(("clients", 2, "tasks", 0))
    'clients[2].tasks[0]'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def _written(location: tuple[int | str, ...]) -> list[int | str]:
    """The steps that appear in a config: pydantic also names the `kind` it chose below `partition`."""
    return [step for place, step in enumerate(location) if place == 0 or location[place - 1] != "partition"]


def describe(error: ValidationError) -> list[str]:
    """Write one line for each fault."""
    lines = []
    for found in error.errors(include_url=False):
        where = place(_written(found["loc"])) or "config"
        match found["type"]:
            case "missing":
                lines.append(f"{where}: missing")
            case "union_tag_not_found":
                lines.append(f"{where}.kind: missing")
            case "union_tag_invalid":
                context = found["ctx"]
                lines.append(f"{where}.kind: should be {context['expected_tags']}, found {context['tag']!r}")
            case "value_error":
                lines.append(f"{where}: {found['ctx']['error']}")
            case _:
                lines.append(f"{where}: {found['msg'][0].lower()}{found['msg'][1:]}, found {found['input']!r:.200}")
    return lines
