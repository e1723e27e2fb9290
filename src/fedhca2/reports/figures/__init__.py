"""Figures of a run, as plain data that plotly.js draws in the browser."""

from fedhca2.reports.figures.figure import Figure

__all__ = ["Figure"]
