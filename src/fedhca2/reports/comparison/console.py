"""A comparison in the terminal, where there is more room below than beside: a row per column of the papers' table."""

from rich.table import Table

from fedhca2.reports.comparison.gather import DELTA_M, Comparison
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
    scores = [column for column in comparison.columns if column != DELTA_M]
    table = Table(title="Comparison", title_justify="left")
    for name in ("method", heading(DELTA_M), f"best in, of {len(scores)}"):
        table.add_column(name, justify="left" if name == "method" else "right")
    for method, row in comparison.entries.items():
        gain = shown(row[DELTA_M], DELTA_M) if DELTA_M in row else ""
        table.add_row(method, gain, str(sum(comparison.is_best(method, column) for column in scores)))
    return table
