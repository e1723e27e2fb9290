"""Reports of runs: tables, figures, pages and progress."""
