"""The command line. What is slow to import is imported by the command that needs it."""

import sys

from fedhca2.cli import methods, run
from fedhca2.cli.app import app

__all__ = ["app", "main", "methods", "run"]


def main() -> None:
    """Run the command."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
