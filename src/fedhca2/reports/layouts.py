"""A comparison as Markdown, CSV, LaTeX, and as a table in the terminal."""

from collections.abc import Sequence
from html import escape
from itertools import groupby
from math import isfinite, isnan
from pathlib import Path

from rich.markup import escape as escape_markup

from fedhca2.records import Records, html_table
from fedhca2.reports.comparison import DELTA_M, LEVEL, LOCAL, MIN_SEEDS, Column, Comparison, gather, with_trivial
from fedhca2.reports.drawings import RANKS_FILE, draw_ranks, ranking_of
from fedhca2.reports.tables import TextTable
from fedhca2.run_folder.reader import RunFiles
from fedhca2.tasks.task import TRIVIAL
from fedhca2.whole_files import ORDINARY, write_whole
from fedhca2.words import UNKNOWN, counted, duration_text, gain_text, size_text

LATEX = str.maketrans(
    {"*": "$^{*}$", "<": "$<$", "—": "--", "↑": r"$\uparrow$", "↓": r"$\downarrow$", "Δ": r"$\Delta$", "±": r"$\pm$"}
    | {"%": r"\%", "_": r"\_", "&": r"\&"}
)


def spread_text(mean: float, deviation: float | None, column: Column = DELTA_M) -> str:
    """A mean with its standard deviation, by default of Δm; a dash if it is unknown.

    >>> spread_text(2.0, 0.5), spread_text(-1.0, float("nan")), spread_text(float("nan"), None)
    ('+2.00 ± 0.50', '-1.00', '—')
    >>> spread_text(0.5, None, Column("home", "sal", "RMSE", False))
    '0.500'
    """
    if not isfinite(mean):
        return UNKNOWN
    digits = column.digits(mean)
    sign = "+" if column.is_gain and column.higher_is_better else ""
    spread = "" if deviation is None or isnan(deviation) else f" ± {deviation:.{digits}f}"
    return f"{mean:{sign}.{digits}f}{spread}"


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
        return f"No Δm is tested against chance: expected {needed}, got {count}."
    how = f"paired t-test against {LOCAL} over {count}, two-sided, p < {LEVEL} after Holm's correction for "
    how += counted(tests, "comparison")
    if not any(comparison.is_beyond_chance(method, DELTA_M) for method in comparison.entries):
        return f"No Δm differs from 0 beyond chance ({how})."
    return f"* Δm differs from 0 beyond chance ({how})."


def marked_cell(comparison: Comparison, method: str, column: Column, bold: str = "{}", mark: str = "*") -> str:
    """A cell, in bold if it is the best of its column, with a mark if it is beyond chance."""
    entry = comparison.entries[method][column]
    text = spread_text(entry.mean, entry.deviation, column)
    text = bold.format(text) if comparison.is_best(method, column) else text
    return text + mark * comparison.is_beyond_chance(method, column)


def _cells(comparison: Comparison, bold: str, mark: str = "*") -> list[list[str]]:
    """A row for each method: its name, and its cells."""
    return [
        [method, *(marked_cell(comparison, method, column, bold, mark) for column in comparison.columns)]
        for method in comparison.entries
    ]


def _headings(comparison: Comparison) -> list[str]:
    return ["method", *(f"{column.group}: {column.heading}".removeprefix(": ") for column in comparison.columns)]


def to_markdown(comparison: Comparison) -> str:
    """Write a Markdown table with the best value of each column in bold."""
    top, note = _headings(comparison), marks_note(comparison).replace("*", r"\*")
    rows = [top, ["---", *("---:" for _ in top[1:])], *_cells(comparison, "**{}**", r"\*")]
    lines = [f"| {' | '.join(cells)} |" for cells in rows]
    return "\n".join([*lines, *(["", note] if note else [])]) + "\n"


def notebook_table(comparison: Comparison) -> str:
    """The table in HTML for a notebook, with the note under it."""
    return f"{html_table(_headings(comparison), _cells(comparison, '{}'))}<p>{escape(marks_note(comparison))}</p>"


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
    if len(comparison.entries.keys() - {TRIVIAL}) > 4:
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
    names, has_floor = [gain.heading for gain in gains], TRIVIAL in comparison.entries
    names[1:1] = [f"best in, of {len(scores)}", *[f"above trivial in, of {len(scores)}"] * has_floor]
    rows = []
    for method in [method for method in comparison.entries if method != TRIVIAL]:
        counts = [sum(comparison.is_best(method, column) for column in scores)]
        if has_floor:
            counts.append(sum(comparison.gain(method, column, TRIVIAL) > 0 for column in scores))
        cells = [marked_cell(comparison, method, gain) for gain in gains]
        rows.append([method, *cells[:1], *map(str, counts), *cells[1:]])
    note, wraps = marks_note(comparison), {"method": 12}
    return TextTable(["method", *names], rows, "Comparison", note, right=names, drop=names[:0:-1], wraps=wraps)


def board_table(board: Records) -> TextTable:
    """The leaderboard in the terminal."""
    rows, last = [], ""
    for one in board:
        gain = spread_text(one["delta_m"], one["standard_deviation"])
        worst = f"{gain_text(one['worst_gain'])} {one['worst_client']}".strip()
        cost = [duration_text(one["seconds"]), *(size_text(one[f"bytes_{way}"]) for way in ("up", "down"))]
        name = one["experiment"] if one["experiment"] != last else ""
        rows.append([name, one["method"], str(one["seeds"]), gain, worst, *cost])
        last = one["experiment"]
    names = ["experiment", "method", "seeds", "Δm %", "worst client", "time", "up", "down"]
    right, drop = ["seeds", "Δm %", "time", "up", "down"], ["down", "up", "time", "seeds"]
    return TextTable(names, [[*map(escape_markup, row)] for row in rows], "", "", right, drop, {"worst client": 14})


def write_comparison(runs: Sequence[RunFiles], folder: Path, *, trivial: bool = False) -> Comparison:
    """Write table.md, table.csv, table.tex and, for three methods or more, critical-difference.svg into a folder.

    :param trivial: also list what a constant answer scores.
    """
    comparison = gather(runs)
    if ranking := ranking_of(comparison):
        write_whole(folder / RANKS_FILE, draw_ranks(ranking).encode(), ORDINARY)
    else:
        (folder / RANKS_FILE).unlink(missing_ok=True)
    comparison = with_trivial(comparison, runs) if trivial else comparison
    for name, text in (("table.md", to_markdown(comparison)), ("table.tex", to_latex(comparison))):
        write_whole(folder / name, text.encode(), ORDINARY)
    comparison.table().to_csv(folder / "table.csv")
    return comparison
