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


SHOULD_BE = {  # where pydantic speaks of Python
    "tuple_type": "should be a list",
    "list_type": "should be a list",
    "dict_type": "should be a mapping of keys to values",
    "model_type": "should be a mapping of keys to values",
    "model_attributes_type": "should be a mapping of keys to values",
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "should be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "should be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "should be true or false"),
    "string_type": "should be text",
    "path_type": "should be a path",
}


def describe(error: ValidationError, inside: str = "") -> list[str]:
    """Write one line for each fault; `inside` is the place of what was validated, if it is not a whole config."""
    lines = []
    faults = error.errors(include_url=False)
    for one in faults:
        where = place([*filter(None, [inside]), *_written(one["loc"])]) or "config"
        match one["type"]:
            case "missing":
                lines.append(f"{where}: missing")
            case "union_tag_not_found":
                lines.append(f"{where}.kind: missing")
            case "union_tag_invalid":
                context = one["ctx"]
                lines.append(f"{where}.kind: should be {context['expected_tags']}, found {context['tag']!r}")
            case "too_short" if any(_below(other["loc"], one["loc"]) for other in faults):
                pass  # its entries have faults of their own, so none was left
            case "too_short":
                lines.append(f"{where}: should have at least {one['ctx']['min_length']}, found {one['input']!r:.200}")
            case "too_long":
                lines.append(f"{where}: should have at most {one['ctx']['max_length']}, found {one['input']!r:.200}")
            case "value_error":
                lines.append(f"{where}: {one['ctx']['error']}")
            case _:
                fault = SHOULD_BE.get(one["type"]) or one["msg"].removeprefix("Input ")
                lines.append(f"{where}: {fault[0].lower()}{fault[1:]}, found {one['input']!r:.200}")
    return lines


def _below(location: tuple[int | str, ...], other: tuple[int | str, ...]) -> bool:
    """Whether one location is inside another."""
    return len(location) > len(other) and location[: len(other)] == other
