"""Text from outside: what a client sends is bounded and made printable before any other code sees it."""

import json
import reprlib
import unicodedata
from dataclasses import dataclass
from typing import Any

TEXT = 500  # characters of a reason
NAME = 64  # characters of a name
HEADER = 2**20  # characters of JSON; the names and shapes of a large encoder take about 50,000


def plain(text: str, limit: int = TEXT) -> str:
    r"""Make text from outside one line of bounded length, without characters that control a terminal or hide text.

    >>> plain("\x1b[31mred\u202e\ud800,\nthen " + "long" * 99, limit=24)
    '[31mred , then longlong…'
    """
    whole = text[: 4 * limit]
    shown = "".join(" " if unicodedata.category(each) in _UNSEEN else each for each in whole)
    line = " ".join(shown.split())
    return line if len(line) <= limit and len(text) == len(whole) else line[: limit - 1] + "…"


_UNSEEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}  # control, format (bidi), surrogate, private, unassigned, breaks


def shown(value: object) -> str:
    """Show any value in a few words, however large or deep it is."""
    return plain(reprlib.repr(value), NAME)


@dataclass(frozen=True)
class Refused:
    """Why something was refused, as plain text."""

    why: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "why", plain(self.why))


def read_json(text: object) -> dict[str, Any] | Refused:
    """Parse the mapping in a text; its content is not checked.

    >>> read_json("[" * 200_000)
    Refused(why='header should be JSON, found RecursionError')
    """
    if not isinstance(text, str) or len(text) > HEADER:
        found = f"{len(text)} characters" if isinstance(text, str) else type(text).__name__
        return Refused(f"header should be at most {HEADER} characters of JSON, found {found}")
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Refused(f"header should be JSON, found {type(error).__name__}")
    return values if isinstance(values, dict) else Refused(f"header should be a mapping, found {shown(values)}")
