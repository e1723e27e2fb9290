"""A comparison as Markdown, CSV, LaTeX, and as a table in the terminal."""

import csv
from collections.abc import Sequence
from io import StringIO
from itertools import groupby
from math import isfinite
from pathlib import Path
from typing import Any

from fedhca2.reports.comparison import DELTA_M, FEWEST, LEVEL, LOCAL, Column, Comparison, SeedScores, gather
from fedhca2.reports.drawings import RANKS_FILE, draw_ranks, ranking_of
from fedhca2.reports.tables import TextTable
from fedhca2.run_folder.reader import RunFiles
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import UNKNOWN

BESIDE = 4  # methods that fit side by side in the terminal
CSV = [
    "method",
    "group",
    "task",
    "metric",
    "higher_is_better",
    "seeds",
    "mean",
    "standard_deviation",
    "best",
    "p_value",
]
MARK = "*"  # of what is beyond chance
LATEX = {
    "*": "$^{*}$",
    "<": "$<$",
    "—": "--",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
    "±": r"$\pm$",
    "%": r"\%",
    "_": r"\_",
    "&": r"\&",
}


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
    return " ".join(filter(None, [_chance_note(comparison), comparison.left_out_note, comparison.changed_note]))


def _chance_note(comparison: Comparison) -> str:
    others = [row for method, row in comparison.entries.items() if method not in comparison.alone]
    if DELTA_M not in comparison.columns or not others:
        return ""
    tested, seeds = comparison.p_values, sorted({sum(map(isfinite, row[DELTA_M].values)) for row in others})
    count = f"{seeds[0]} to {seeds[-1]} seeds" if len(seeds) > 1 else f"{seeds[0]} seed{'s' * (seeds[0] != 1)}"
    if not tested:
        return f"No Δm is marked as beyond chance: that takes at least {FEWEST} seeds with a known Δm, found {count}."
    how = (
        f"paired t-test against {LOCAL} over {count}, two-sided, p < {LEVEL} after Holm's correction for {len(tested)}"
    )
    how += f" comparison{'s' * (len(tested) > 1)}"
    if not any(comparison.is_beyond_chance(method, DELTA_M) for method in comparison.entries):
        return f"No Δm differs from 0 beyond chance ({how})."
    return f"{MARK} Δm differs from 0 beyond chance ({how})."


def marked_cell(comparison: Comparison, method: str, column: Column, bold: str = "{}", mark: str = MARK) -> str:
    """A cell, in bold if it is the best of its column, with a mark if it is beyond chance."""
    text = shown(comparison.entries[method][column], column)
    text = bold.format(text) if comparison.is_best(method, column) else text
    return text + mark * comparison.is_beyond_chance(method, column)


def to_markdown(comparison: Comparison) -> str:
    """Write a Markdown table with the best value of each column in bold."""
    top = [
        "method",
        *(f"{column.group}: {column.heading}" if column.group else column.heading for column in comparison.columns),
    ]
    lines = [_line(top), _line(["---", *("---:" for _ in comparison.columns)])]
    for method in comparison.entries:
        cells = [marked_cell(comparison, method, column, "**{}**", rf"\{MARK}") for column in comparison.columns]
        lines.append(_line([method, *cells]))
    note = marks_note(comparison).replace(MARK, rf"\{MARK}")
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def to_csv(comparison: Comparison) -> str:
    """Write one line per method and column, with all digits and an empty field for unknown values."""
    held = StringIO()
    writer = csv.writer(held, lineterminator="\n")
    writer.writerow(CSV)
    for cells in to_data(comparison):
        *about, mean, deviation, best, p = cells.values()
        writer.writerow([*about, _digits(mean), _digits(deviation), best, _digits(p)])
    return held.getvalue()


def to_data(comparison: Comparison) -> list[dict[str, Any]]:
    """One record per method and column, with the keys of the CSV file."""
    records = []
    for method, row in comparison.entries.items():
        for column in comparison.columns:
            entry = row[column]
            about = [method, column.group, column.task, column.metric, column.higher_is_better, len(entry.values)]
            p = comparison.p_values.get(method) if column == DELTA_M else None
            values = [*about, entry.mean, entry.deviation, comparison.is_best(method, column), p]
            records.append(dict(zip(CSV, values, strict=True)))
    return records


def _digits(value: float | None) -> str:
    """All digits of a number, or an empty text if it is unknown."""
    return "" if value is None or not isfinite(value) else repr(value)


def to_latex(comparison: Comparison) -> str:
    """Write the papers' layout for the booktabs package: groups over tasks over metrics, the best in bold."""
    groups = [(group, len(list(columns))) for group, columns in groupby(comparison.columns, key=lambda c: c.group)]
    spans = " & ".join(rf"\multicolumn{{{count}}}{{c}}{{{_tex(group)}}}" for group, count in groups)
    tasks = " & ".join(_tex(column.task) for column in comparison.columns)
    metrics = " & ".join(_tex(column.measure) for column in comparison.columns)
    lines = [rf"\begin{{tabular}}{{l{'c' * len(comparison.columns)}}}", r"\toprule"]
    lines += [rf" & {spans} \\", rf" & {tasks} \\", rf"Method & {metrics} \\", r"\midrule"]
    for method in comparison.entries:
        cells = [marked_cell(comparison, method, column, r"\textbf{{{}}}") for column in comparison.columns]
        lines.append(rf"{_tex(method)} & {' & '.join(map(_tex, cells))} \\")
    note = marks_note(comparison)
    under = [rf"\par{{\footnotesize {_tex(note)}}}"] if note else []
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", *under]) + "\n"


def _tex(text: str) -> str:
    return "".join(LATEX.get(letter, letter) for letter in text)


def comparison_table(comparison: Comparison) -> TextTable:
    """Make a table with a column per method and the best of each row in bold, or a summary if they do not fit."""
    if len(comparison.entries) > BESIDE:
        return _summary(comparison)
    rows, group = [], ""
    for column in comparison.columns:
        cells = [marked_cell(comparison, method, column, "[bold]{}[/]") for method in comparison.entries]
        rows.append([column.group if column.group != group else "", column.heading, *cells])
        group = column.group
    return TextTable(
        ["group", "metric", *comparison.entries],
        rows,
        title="Comparison",
        note=marks_note(comparison),
        right=list(comparison.entries),
        wraps={"group": 10, "metric": 10},
        otherwise=_summary(comparison),
    )


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
    for name, written in (("table.md", to_markdown), ("table.csv", to_csv), ("table.tex", to_latex)):
        write_whole(folder / name, written(comparison).encode(), ORDINARY)
    return comparison
