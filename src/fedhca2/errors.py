"""Errors to show to a user: the location of a mistake, what was expected, and what was there instead."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:  # the command line starts without pydantic
    from pydantic import ValidationError


class Fault(NamedTuple):
    """A mistake in a user's input: its location, such as `clients[2].tasks` or a file, and "expected X, got Y"."""

    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def within(self, outer: str | Path, separator: str = ": ") -> "Fault":
        """The same mistake, at a location within another: in a file, or with "." as the separator in a setting."""
        return Fault(f"{outer}{separator}{self.where}" if self.where else str(outer), self.message)


class UserError(ValueError):
    """Mistakes in a user's input."""

    def __init__(self, where: str | Path, message: str) -> None:
        """:param where: the location of the mistake; empty if there is none.
        :param message: what was expected, and what was there.
        """
        super().__init__(str(where), message)
        self.faults = [Fault(str(where), message)]

    def __str__(self) -> str:
        return "\n".join(self.lines)

    @classmethod
    def of(cls, faults: Iterable[Fault]) -> Self:
        """Report several mistakes at once."""
        error = cls("", "")
        error.faults = list(faults)
        return error

    @property
    def lines(self) -> list[str]:
        """A line for each mistake."""
        return [str(fault) for fault in self.faults]


def list_faults(error: "ValidationError", inside: str = "") -> list[Fault]:
    """The mistakes that pydantic found.

    :param inside: the location of what was validated, if it is not a whole config.
    """
    details = error.errors(include_url=False)
    # An entry with mistakes of its own is left out by pydantic, which then counts too few.
    incomplete = {detail["loc"][:length] for detail in details for length in range(len(detail["loc"]))}
    faults = []
    for detail in details:
        kind, location = detail["type"], detail["loc"]
        if kind == "too_short" and location in incomplete:
            continue
        # Below `partition` pydantic also names the kind that it chose.
        steps = [step for i, step in enumerate(location) if i == 0 or location[i - 1] != "partition"]
        steps += ["kind"] if kind.startswith("union_tag") else []
        faults.append(Fault(format_location([*filter(None, [inside]), *steps]) or "config", _describe(kind, detail)))
    return faults


def format_location(location: Iterable[int | str]) -> str:
    """Write a location in a config as a user would.

    >>> format_location(("clients", 2, "tasks", 0))
    'clients[2].tasks[0]'
    """
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in location).removeprefix(".")


def _describe(kind: str, detail: Any) -> str:
    """What pydantic expected, in a user's words, and what it got."""
    context = detail.get("ctx", {})
    if kind in ("missing", "union_tag_not_found"):
        return "missing"
    if kind == "value_error":
        return str(context["error"])
    if kind == "unknown_key":
        return str(detail["msg"])
    got = context["tag"] if kind == "union_tag_invalid" else detail["input"]
    template = _EXPECTED.get(kind)
    expected = template.format_map(context) if template else detail["msg"].removeprefix("Input should be ")
    return f"expected {expected}, got {got!r:.200}"


_EXPECTED = {  # what pydantic says in terms of Python
    **dict.fromkeys(("tuple_type", "list_type"), "a list"),
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "a mapping of keys to values"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float", "int_parsing_size"), "a whole number"),
    **dict.fromkeys(("float_type", "float_parsing", "boolean_for_number"), "a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "at most {max_length} characters",
    "path_type": "a path",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "too_short": "{min_length} or more entries",
    "too_long": "at most {max_length} entries",
    "union_tag_invalid": "{expected_tags}",
}
