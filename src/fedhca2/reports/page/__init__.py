"""A page that shows one run or several: one HTML file that needs nothing else."""

from fedhca2.reports.page.write import write_page

__all__ = ["write_page"]
