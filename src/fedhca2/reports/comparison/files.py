"""A comparison on disk."""

from collections.abc import Sequence
from pathlib import Path

from fedhca2.reports.comparison.gather import Comparison, gather
from fedhca2.reports.comparison.layouts import to_csv, to_latex, to_markdown
from fedhca2.run_folder.reader import RunFiles


def write_comparison(runs: Sequence[RunFiles], folder: Path) -> Comparison:
    """Write table.md, table.csv and table.tex into a folder."""
    comparison = gather(runs)
    for name, written in (("table.md", to_markdown), ("table.csv", to_csv), ("table.tex", to_latex)):
        (folder / name).write_text(written(comparison), "utf-8")
    return comparison
