"""A comparison as Markdown, CSV, LaTeX, and as a table in the terminal."""

import csv
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from math import isfinite
from pathlib import Path

from rich.table import Table

from fedhca2.reports.comparison.gather import Column, Comparison, Entry, gather
from fedhca2.reports.names import ARROWS, UNKNOWN, decimals, metric_title
from fedhca2.run_folder.reader import RunFiles

BESIDE = 4  # methods that fit side by side in the terminal
LATEX = {
    "—": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
}


def shown(entry: Entry, column: Column) -> str:
    """Mean ± standard deviation.

    >>> from fedhca2.reports.comparison.gather import DELTA_M
    >>> shown(Entry((1.0, 3.0)), DELTA_M), shown(Entry((0.5,)), Column("home", "depth", "RMSE", False))
    ('+2.00 ± 1.41', '0.500')
    >>> shown(Entry((float("nan"),)), DELTA_M)
    '—'
    """
    if not isfinite(entry.mean):
        return UNKNOWN
    digits = 2 if column.is_gain else decimals(entry.mean)
    sign = "+" if column.is_gain else ""
    spread = f" ± {entry.deviation:.{digits}f}" if entry.deviation is not None else ""
    return f"{entry.mean:{sign}.{digits}f}{spread}"


def heading(column: Column) -> str:
    """The heading of a column."""
    return _measured(column) if column.is_gain else f"{column.task} {_measured(column)}"


def _measured(column: Column) -> str:
    return f"{metric_title(column.metric)}{' %' * column.is_gain} {ARROWS[column.higher_is_better]}"


def to_markdown(comparison: Comparison) -> str:
    """Write a Markdown table with the best value of each column in bold."""
    top = [
        "method",
        *(f"{column.group}: {heading(column)}" if column.group else heading(column) for column in comparison.columns),
    ]
    lines = [_line(top), _line(["---", *("---:" for _ in comparison.columns)])]
    for method, row in comparison.entries.items():
        cells = [
            f"**{shown(row[c], c)}**" if comparison.is_best(method, c) else shown(row[c], c) for c in comparison.columns
        ]
        lines.append(_line([method, *cells]))
    return "\n".join(lines) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_csv(comparison: Comparison) -> str:
    """Write one line per method and column, with all digits and an empty field for unknown values."""
    held = StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(
        ["method", "group", "task", "metric", "higher_is_better", "seeds", "mean", "standard_deviation", "best"]
    )
    for method, row in comparison.entries.items():
        for column in comparison.columns:
            entry = row[column]
            about = [method, column.group, column.task, column.metric, column.higher_is_better, len(entry.values)]
            writer.writerow([*about, _digits(entry.mean), _digits(entry.deviation), comparison.is_best(method, column)])
    return held.getvalue()


def _digits(value: float | None) -> str:
    """All digits of a number, or an empty text if it is unknown."""
    return "" if value is None or not isfinite(value) else repr(value)


def to_latex(comparison: Comparison) -> str:
    """Write the papers' layout for the booktabs package: groups over tasks over metrics, the best in bold."""
    groups = [(group, len(list(columns))) for group, columns in groupby(comparison.columns, key=lambda c: c.group)]
    spans = " & ".join(rf"\multicolumn{{{count}}}{{c}}{{{_tex(group)}}}" for group, count in groups)
    tasks = " & ".join(_tex(column.task) for column in comparison.columns)
    metrics = " & ".join(_tex(_measured(column)) for column in comparison.columns)
    lines = [rf"\begin{{tabular}}{{l{'c' * len(comparison.columns)}}}", r"\toprule"]
    lines += [rf" & {spans} \\", rf" & {tasks} \\", rf"Method & {metrics} \\", r"\midrule"]
    for method, row in comparison.entries.items():
        cells = [_tex(shown(row[c], c)) for c in comparison.columns]
        bold = [
            rf"\textbf{{{t}}}" if comparison.is_best(method, c) else t
            for t, c in zip(cells, comparison.columns, strict=True)
        ]
        lines.append(rf"{_tex(method)} & {' & '.join(bold)} \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}"]) + "\n"


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def comparison_table(comparison: Comparison) -> Table:
    """Make a table with a column per method and the best of each row in bold, or a summary of many methods."""
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


def write_comparison(runs: Sequence[RunFiles], folder: Path) -> Comparison:
    """Write table.md, table.csv and table.tex into a folder."""
    comparison = gather(runs)
    for name, written in (("table.md", to_markdown), ("table.csv", to_csv), ("table.tex", to_latex)):
        (folder / name).write_text(written(comparison), "utf-8")
    return comparison
