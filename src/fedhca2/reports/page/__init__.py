"""A page that shows one run or several: one HTML file that needs nothing else."""

from fedhca2.reports.page.write import NoPlotly, write_page

__all__ = ["NoPlotly", "write_page"]
