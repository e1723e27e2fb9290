"""A comparison as Markdown, CSV, LaTeX, and as a table in the terminal."""

import csv
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

from fedhca2.reports.comparison import DELTA_M, LEVEL, LOCAL, MIN_SEEDS, Column, Comparison, SeedScores, gather
from fedhca2.reports.drawings import RANKS_FILE, draw_ranks, ranking_of
from fedhca2.reports.tables import TextTable
from fedhca2.run_folder.reader import RunFiles
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import UNKNOWN, counted

LATEX = str.maketrans(
    {"*": "$^{*}$", "<": "$<$", "—": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "Δ": r"$\Delta$", "±": r"$\pm$"}
    | {"%": r"\%", "_": r"\_", "&": r"\&"}
)


def shown(entry: SeedScores, column: Column) -> str:
    """Mean ± standard deviation.

    >>> shown(SeedScores({0: 1.0, 1: 3.0}), DELTA_M), shown(SeedScores({0: 0.5}), Column("home", "sal", "RMSE", False))
    ('+2.00 ± 1.41', '0.500')
    >>> shown(SeedScores({0: float("nan")}), DELTA_M)
    '—'
    """
    if not isfinite(entry.mean):
        return UNKNOWN
    digits = column.digits(entry.mean)
    sign = "+" if column.is_gain else ""
    spread = f" ± {entry.deviation:.{digits}f}" if entry.deviation is not None else ""
    return f"{entry.mean:{sign}.{digits}f}{spread}"


def marks_note(comparison: Comparison) -> str:
    """What the mark * means, or why there is none, which columns are left out, and which settings are not defaults."""
    return " ".join(filter(None, [_chance_note(comparison), *comparison.notes]))


def _chance_note(comparison: Comparison) -> str:
    others = [row for method, row in comparison.entries.items() if method not in comparison.alone]
    if DELTA_M not in comparison.columns or not others:
        return ""
    tests, seeds = len(comparison.p_values), sorted({sum(map(isfinite, row[DELTA_M].values)) for row in others})
    count = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else counted(seeds[0], "seed")
    if not tests:
        needed = f"at least {MIN_SEEDS} seeds with a known Δm"
        return f"No Δm is marked as beyond chance: that takes {needed}, found {count}."
    how = f"paired t-test against {LOCAL} over {count}, two-sided, p < {LEVEL} after Holm's correction for "
    how += counted(tests, "comparison")
    if not any(comparison.is_beyond_chance(method, DELTA_M) for method in comparison.entries):
        return f"No Δm differs from 0 beyond chance ({how})."
    return f"* Δm differs from 0 beyond chance ({how})."


def marked_cell(comparison: Comparison, method: str, column: Column, bold: str = "{}", mark: str = "*") -> str:
    """A cell, in bold if it is the best of its column, with a mark if it is beyond chance."""
    text = shown(comparison.entries[method][column], column)
    text = bold.format(text) if comparison.is_best(method, column) else text
    return text + mark * comparison.is_beyond_chance(method, column)


def _cells(comparison: Comparison, bold: str, mark: str = "*") -> list[list[str]]:
    """A row for each method: its name, and its cells."""
    return [
        [method, *(marked_cell(comparison, method, column, bold, mark) for column in comparison.columns)]
        for method in comparison.entries
    ]


def to_markdown(comparison: Comparison) -> str:
    """Write a Markdown table with the best value of each column in bold."""
    columns, note = comparison.columns, marks_note(comparison).replace("*", r"\*")
    top = ["method", *(f"{column.group}: {column.heading}".removeprefix(": ") for column in columns)]
    rows = [top, ["---", *("---:" for _ in columns)], *_cells(comparison, "**{}**", r"\*")]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def to_csv(comparison: Comparison) -> str:
    """Write one line per method and column, with all digits and an empty field for unknown values."""
    text, records = StringIO(), to_data(comparison)
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    for record in records:
        writer.writerow({k: "" if isinstance(v, float) and not isfinite(v) else v for k, v in record.items()})
    return text.getvalue()


def to_data(comparison: Comparison) -> list[dict[str, Any]]:
    """One record per method and column, with the keys of the CSV file."""
    return [
        {
            "method": method,
            "group": column.group,
            "task": column.task,
            "metric": column.metric,
            "higher_is_better": column.higher_is_better,
            "seeds": len(row[column].values),
            "mean": row[column].mean,
            "standard_deviation": row[column].deviation,
            "best": comparison.is_best(method, column),
            "p_value": comparison.p_values.get(method) if column == DELTA_M else None,
        }
        for method, row in comparison.entries.items()
        for column in comparison.columns
    ]


def to_latex(comparison: Comparison) -> str:
    """Write the papers' layout for the booktabs package: groups over tasks over metrics, the best in bold."""
    columns = comparison.columns
    groups = [(group.translate(LATEX), len(list(same))) for group, same in groupby(columns, key=lambda c: c.group)]
    spans = [rf"\multicolumn{{{count}}}{{c}}{{{group}}}" for group, count in groups]
    heads = [["", *(column.task for column in columns)], ["Method", *(column.measure for column in columns)]]
    rows = [[cell.translate(LATEX) for cell in row] for row in [*heads, *_cells(comparison, r"\textbf{{{}}}")]]
    lines = [rf"{' & '.join(cells)} \\" for cells in [["", *spans], *rows]]
    lines[3:3] = [r"\midrule"]
    note = marks_note(comparison).translate(LATEX)
    under = [rf"\par{{\footnotesize {note}}}"] if note else []
    begin = [rf"\begin{{tabular}}{{l{'c' * len(columns)}}}", r"\toprule"]
    return "\n".join([*begin, *lines, r"\bottomrule", r"\end{tabular}", *under]) + "\n"


def comparison_table(comparison: Comparison) -> TextTable:
    """Make a table with a column per method and the best of each row in bold, or a summary if they do not fit."""
    summary = _summary(comparison)
    if len(comparison.entries) > 4:
        return summary
    rows, group = [], ""
    for column in comparison.columns:
        cells = [marked_cell(comparison, method, column, "[bold]{}[/]") for method in comparison.entries]
        rows.append([column.group if column.group != group else "", column.heading, *cells])
        group = column.group
    names, wraps = ["group", "metric", *comparison.entries], {"group": 10, "metric": 10}
    return TextTable(names, rows, "Comparison", summary.note, names[2:], wraps=wraps, otherwise=summary)


def _summary(comparison: Comparison) -> TextTable:
    gains = [column for column in comparison.columns if column.is_gain]
    scores = [column for column in comparison.columns if not column.is_gain]
    names = [*(gain.heading for gain in gains), f"best in, of {len(scores)}"]
    best = {method: sum(comparison.is_best(method, column) for column in scores) for method in comparison.entries}
    rows = [
        [method, *(marked_cell(comparison, method, gain) for gain in gains), str(best[method])]
        for method in comparison.entries
    ]
    note, wraps = marks_note(comparison), {"method": 12}
    return TextTable(["method", *names], rows, "Comparison", note, right=names, drop=names[:0:-1], wraps=wraps)


def write_comparison(runs: Sequence[RunFiles], folder: Path) -> Comparison:
    """Write table.md, table.csv, table.tex and, for three methods or more, critical-difference.svg into a folder."""
    comparison = gather(runs)
    if ranking := ranking_of(comparison):
        write_whole(folder / RANKS_FILE, draw_ranks(ranking).encode(), ORDINARY)
    else:
        (folder / RANKS_FILE).unlink(missing_ok=True)
    for name, write in (("table.md", to_markdown), ("table.csv", to_csv), ("table.tex", to_latex)):
        write_whole(folder / name, write(comparison).encode(), ORDINARY)
    return comparison
