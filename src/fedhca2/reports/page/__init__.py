"""A page that shows one run or several: one HTML file that needs nothing else."""
