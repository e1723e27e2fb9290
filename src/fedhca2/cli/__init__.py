"""The command line. Each command imports the slow modules it needs."""

from fedhca2.cli import catalogue, compare, data, flower, models, privacy, run, settings
from fedhca2.cli.app import app, print_anywhere

__all__ = ["app", "catalogue", "compare", "data", "flower", "main", "models", "privacy", "run", "settings"]


def main() -> None:
    """Run the command."""
    print_anywhere()
    app()
