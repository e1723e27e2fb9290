"""Comparing several runs: the papers' table, in every format."""

from fedhca2.reports.comparison.gather import Column, Comparison, Entry, gather
from fedhca2.reports.comparison.layouts import to_csv, to_latex, to_markdown, write_comparison

__all__ = ["Column", "Comparison", "Entry", "gather", "to_csv", "to_latex", "to_markdown", "write_comparison"]
