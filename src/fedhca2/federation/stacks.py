"""Rows of one part and layout from all clients, stacked for the server."""

from dataclasses import dataclass

from torch import Tensor

from fedhca2.aggregation import Aggregator, Member, Rows
from fedhca2.params import Layout, Part, Slot


@dataclass(frozen=True)
class Entry:
    """One row of a part, and where it belongs in the federation."""

    client: str
    slot: Slot
    member: Member
    row: Tensor
    median: int  # of the numbers of images that all clients say they have

    @property
    def key(self) -> str:
        """The key of its learned weights."""
        return f"{self.client}/{self.slot}"


@dataclass(frozen=True)
class Stack:
    """All rows of one part and layout, their inner products, and their running statistics."""

    part: Part
    layout: Layout
    aggregator: Aggregator
    entries: list[Entry]
    rows: Rows
    products: Tensor
    statistics: "Stack | None" = None

    @classmethod
    def of(cls, layout: Layout, aggregator: Aggregator, entries: list[Entry], round: int) -> "Stack":
        """Build a stack of these rows, with the inner products that the aggregator needs: one pass over all rows."""
        rows = Rows([entry.member for entry in entries], layout, [entry.row for entry in entries])
        return cls(entries[0].slot.part, layout, aggregator, entries, rows, aggregator.products(rows, round))

    @property
    def compared(self) -> Tensor:
        """The inner products that the mixing uses."""
        if self.statistics and self.aggregator.compares_models:
            return self.products + self.statistics.products
        return self.products

    def lengths(self) -> list[float]:
        """Lengths of the rows, from their own inner products; NaN for a row that is not finite."""
        if self.aggregator.measure == "rows":
            return self.products.sum(dim=0).diagonal().clamp(min=0).sqrt().tolist()
        return self.rows.norms().tolist()
