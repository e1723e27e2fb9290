"""The table of all attacks: each test adds a line, and pytest prints them at the end."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Line:
    """A line of the table."""

    adversary: str
    attack: str
    outcome: str
    drift: float = 0.0  # how far the others are from where they would be without it, as a share of where they are

    to_dict = asdict


def table(lines: Sequence[Line]) -> str:
    """Format all lines as text in columns."""
    rows = [("adversary", "attack", "outcome", "others' drift")]
    rows += [(each.adversary, each.attack, each.outcome, f"{each.drift:.3g}") for each in lines]
    widths = [min(max(len(row[column]) for row in rows), 80) for column in range(4)]
    return "\n".join(
        "  ".join(f"{cell[:width]:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )
