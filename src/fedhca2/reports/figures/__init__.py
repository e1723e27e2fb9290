"""Figures of a run, as plain data that plotly draws in the browser."""

from fedhca2.reports.figures.figure import Figure

__all__ = ["Figure"]
