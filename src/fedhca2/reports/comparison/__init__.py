"""Several runs beside each other: the papers' table, in every layout."""

from fedhca2.reports.comparison.gather import Column, Comparison, Entry, gather
from fedhca2.reports.comparison.layouts import to_csv, to_latex, to_markdown, write_comparison

__all__ = ["Column", "Comparison", "Entry", "gather", "to_csv", "to_latex", "to_markdown", "write_comparison"]
