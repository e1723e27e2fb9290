"""A comparison in the terminal, where there is more room below than beside: a row per column of the papers' table."""

from rich.table import Table

from fedhca2.reports.comparison.gather import Comparison
from fedhca2.reports.comparison.layouts import heading, shown


def comparison_table(comparison: Comparison) -> Table:
    """A column per method, the best of each row in bold."""
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
