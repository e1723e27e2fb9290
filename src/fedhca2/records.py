"""Records: a list of dictionaries with the same keys, which pandas and polars take as it is."""

import csv
from collections.abc import Sequence
from html import escape
from io import StringIO
from math import isfinite
from pathlib import Path
from typing import Any

from fedhca2.whole_files import ORDINARY, write_whole

MOST_ROWS = 60  # that a notebook shows


class Records(list[dict[str, Any]]):
    """A table as a list of dictionaries: `pandas.DataFrame(records)`, `polars.DataFrame(records)`, `.to_csv(path)`.

    Every column has values of one type, which polars needs: an unknown number is NaN, and a missing text is "". A
    notebook shows it as a table.

    >>> print(Records([{"client": "home", "gain": 1.5}]).to_csv().strip())
    client,gain
    home,1.5
    """

    @property
    def columns(self) -> list[str]:
        """The keys of every record."""
        return list(self[0]) if self else []

    def to_csv(self, path: str | Path | None = None) -> str:
        """The records as CSV with all digits, and an empty field for unknown numbers.

        :param path: a file to write it to as well.
        """
        text = StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(self.columns)
        writer.writerows([_field(value) for value in record.values()] for record in self)
        if path is not None:
            write_whole(Path(path), text.getvalue().encode(), ORDINARY)
        return text.getvalue()

    def _repr_html_(self) -> str:
        left_out = len(self) - MOST_ROWS
        cells = [[_shown(value) for value in record.values()] for record in self[:MOST_ROWS]]
        return html_table(self.columns, cells) + (f"<p>… and {left_out:,} more rows</p>" if left_out > 0 else "")


def html_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table for a notebook; the cells are text."""
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    lines = ("".join(f"<td>{escape(cell)}</td>" for cell in row) for row in rows)
    return f"<table><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _field(value: Any) -> Any:
    return "" if isinstance(value, float) and not isfinite(value) else value


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) and isfinite(value) else str(_field(value))
