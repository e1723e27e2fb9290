"""A benchmark's result: rows with a name, a figure and an optional bound."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Row:
    """One measured figure, with at most one bound."""

    name: str
    value: float
    unit: str
    at_most: float | None = None
    at_least: float | None = None

    @property
    def ratio(self) -> float | None:
        """The figure as a share of its bound."""
        bound = self.at_least if self.at_most is None else self.at_most
        return None if bound is None else self.value / bound

    @property
    def ok(self) -> bool | None:
        """Whether the bound holds; None without a bound."""
        if self.ratio is None:
            return None
        return self.ratio <= 1 if self.at_least is None else self.ratio >= 1

    @property
    def bound(self) -> str:
        """The bound as text."""
        if self.at_most is not None:
            return f"≤ {self.at_most:.4g}"
        return "" if self.at_least is None else f"≥ {self.at_least:.4g}"

    @property
    def verdict(self) -> str:
        """The text `ok` or `missed`; empty without a bound."""
        return {None: "", True: "ok", False: "missed"}[self.ok]

    def line(self) -> str:
        """The row as text."""
        verdict_text = f"  ({self.bound}: {self.ratio:.2f} of it, {self.verdict})" if self.ratio is not None else ""
        return f"{self.name}: {self.value:.4g} {self.unit}{verdict_text}"

    def to_dict(self) -> dict[str, str | float | bool | None]:
        """The row as plain data."""
        return asdict(self) | {"ratio": self.ratio, "ok": self.ok}


def show(rows: Iterable[Row]) -> list[Row]:
    """Print rows as they are measured, and return them."""
    shown = []
    for row in rows:
        print(row.line(), flush=True)
        shown.append(row)
    return shown
