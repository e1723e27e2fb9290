"""A comparison in the terminal, where there is more room below than beside: a row per column of the papers' table."""

from rich.table import Table

from fedhca2.reports.comparison.gather import Comparison
from fedhca2.reports.comparison.layouts import heading, shown

BESIDE = 4  # methods that have room beside each other


def comparison_table(comparison: Comparison) -> Table:
    """A column per method with the best of each row in bold, or of many methods what they come to."""
    if len(comparison.entries) > BESIDE:
        return _summary(comparison)
    table = Table(title="Comparison", title_justify="left")
    table.add_column("group")
    table.add_column("metric")
    for method in comparison.entries:
        table.add_column(method, justify="right")
    group = ""
    for column in comparison.columns:
        cells = [
            f"[bold]{shown(row[column], column)}[/]"
            if comparison.is_best(method, column)
            else shown(row[column], column)
            for method, row in comparison.entries.items()
        ]
        table.add_row(column.group if column.group != group else "", heading(column), *cells)
        group = column.group
    return table


def _summary(comparison: Comparison) -> Table:
    gains = [column for column in comparison.columns if column.is_gain]
    scores = [column for column in comparison.columns if not column.is_gain]
    table = Table(title="Comparison", title_justify="left")
    table.add_column("method")
    for name in (*map(heading, gains), f"best in, of {len(scores)}"):
        table.add_column(name, justify="right")
    for method, row in comparison.entries.items():
        best = sum(comparison.is_best(method, column) for column in scores)
        table.add_row(method, *(shown(row[gain], gain) for gain in gains), str(best))
    return table
